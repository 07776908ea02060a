"""Makes what an index of an earlier version lacks, from what it has: codes, table of documents."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from carpool.codes.int4 import Encoder, code_layout
from carpool.disk.checked_file import CheckedFileWriter
from carpool.disk.document_keys import DOCUMENT_KEYS_NAME
from carpool.disk.extents import codes_name, padded
from carpool.disk.index import OpenIndex, files_of, open_index
from carpool.disk.manifest import FileEntry, Manifest, read_manifest, write_manifest
from carpool.disk.pages import dense
from carpool.disk.rotation import read_rotation
from carpool.errors import ConfigError
from indexer.progress import ProgressReport
from indexer.write import digest_of_id, entry_of, write_keys


def make_codes(index_dir: Path, progress: ProgressReport) -> Manifest:
    """Writes codes for every row, then the manifest that names them; returns it. Blocks.

    Where there is no table of documents, that too. The version of the index stays: clusters, rows
    and passages do. Old files of codes are removed at the end. Memory: one cluster, 60 bytes a
    document. Raises `CorruptionError` where a cluster or a document is damaged, and `ConfigError`
    where the index was replaced meanwhile.
    """
    index = open_index(index_dir)
    manifest, layout = index.manifest, code_layout(index.manifest.dimension)
    encoder = Encoder(layout, index.scan_centroids, read_rotation(index_dir, manifest))
    entries: dict[str, FileEntry] = {}
    progress.start("encoding (rows)", manifest.row_count)
    try:
        for segment in range(manifest.segment_count):
            name = codes_name(layout.codec, segment)
            writer = CheckedFileWriter(index_dir, name, manifest.build_id)
            try:
                for cluster in index.clusters_of(segment):
                    vectors = dense(cluster).vectors.astype(np.float32, copy=False)
                    writer.append(padded(encoder.encode(cluster.cluster, vectors)))
                    progress.advance(cluster.row_count)
            except BaseException:
                writer.abandon()
                raise
            entries |= writer.close()
        if DOCUMENT_KEYS_NAME not in manifest.files:
            entries[DOCUMENT_KEYS_NAME] = _write_keys(index, progress)
    finally:
        index.close()
    if read_manifest(index_dir) != manifest:
        raise ConfigError(f"the index at {index_dir} was replaced meanwhile; run the command again")
    files = manifest.files | entries
    made = msgspec.structs.replace(manifest, codes=(layout,), files=files)
    made = msgspec.structs.replace(made, files={name: files[name] for name in files_of(made)})
    write_manifest(index_dir, made)
    for name in set(files) - set(made.files):
        (index_dir / name).unlink(missing_ok=True)
    return made


def _write_keys(index: OpenIndex, progress: ProgressReport) -> FileEntry:
    """Writes the table of documents: an index without one has documents of one passage each."""
    digests = bytearray()
    progress.start("reading documents", index.manifest.row_count)
    for number in range(index.manifest.row_count):
        digests += digest_of_id(index.documents.document(number).doc_id)
        progress.advance(1)
    write_keys(index.dir, digests)
    return entry_of(index.dir / DOCUMENT_KEYS_NAME)

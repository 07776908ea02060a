"""Checks every byte of an index and lists all damage."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from carpool.disk.centroids import CENTROIDS_NAME, centroids_fingerprint, read_centroids
from carpool.disk.checked_file import PAGE_BYTES, SUM_SUFFIX, CheckedFile
from carpool.disk.document_rows import DOCUMENT_ROWS_NAME, NO_ROW, read_document_rows
from carpool.disk.documents import DOCUMENTS_NAME, OFFSETS_NAME, DocumentStore
from carpool.disk.extent_table import EXTENTS_NAME, read_extents
from carpool.disk.extents import ClusterExtent, codes_name, segment_name
from carpool.disk.files import check_no_hole, check_size, file_crc32, open_regular
from carpool.disk.index import files_of
from carpool.disk.manifest import Manifest, read_manifest
from carpool.disk.pages import dense
from carpool.disk.rotation import ROTATION_NAME
from carpool.disk.segments import check_header, read_cluster
from carpool.errors import CarpoolError, CorruptionError
from indexer.progress import ProgressReport
from indexer.vectors import NORM_TOLERANCE

CODE_CHUNK_PAGES = 1024
TABLES = (CENTROIDS_NAME, EXTENTS_NAME, OFFSETS_NAME, DOCUMENT_ROWS_NAME, ROTATION_NAME)


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """What was read, and one sentence for each problem; none: the index is undamaged."""

    problems: tuple[str, ...]
    cluster_count: int
    row_count: int
    size_bytes: int


def verify_index(index_dir: Path, progress: ProgressReport) -> VerifyReport:
    """Returns the damage of the index at `index_dir`. Reads everything, blocks.

    Raises `ConfigError` where there is no index of this format; damage is listed, not raised.
    """
    try:
        manifest = read_manifest(index_dir)
    except CorruptionError as error:
        return VerifyReport(problems=(str(error),), cluster_count=0, row_count=0, size_bytes=0)
    problems: list[str] = []
    for check in (_check_files, _check_clusters, _check_codes, _check_documents):
        with _listed(problems, index_dir):
            check(index_dir, manifest, problems, progress)
    return VerifyReport(
        problems=tuple(dict.fromkeys(problems)),
        cluster_count=manifest.nlist,
        row_count=manifest.row_count,
        size_bytes=sum(entry.size_bytes for entry in manifest.files.values()),
    )


@contextmanager
def _listed(problems: list[str], path: Path) -> Iterator[None]:
    """Adds damage that is raised, and that `path` cannot be read, to `problems`."""
    try:
        yield
    except CarpoolError as error:
        problems.append(str(error))
    except OSError as error:
        problems.append(f"{error.filename or path} cannot be read: {error.strerror}")
    except KeyError as error:
        problems.append(f"the manifest does not list {error}")


def _check_files(
    index_dir: Path, manifest: Manifest, problems: list[str], progress: ProgressReport
) -> None:
    """Checks the sizes of all files, and the checksums of the tables."""
    names = files_of(manifest)
    progress.start("files", len(names))
    for name in names:
        path, entry = index_dir / name, manifest.files.get(name)
        with _listed(problems, path):
            if entry is None:
                problems.append(f"the manifest does not list {name}")
                continue
            check_size(path, entry.size_bytes)
            if (name in TABLES or name.endswith(SUM_SUFFIX)) and file_crc32(path) != entry.crc32:
                problems.append(f"{path} is damaged: its checksum is not the manifest's")
        progress.advance(1)


def _check_clusters(
    index_dir: Path, manifest: Manifest, problems: list[str], progress: ProgressReport
) -> None:
    with _listed(problems, index_dir / CENTROIDS_NAME):
        centroids = read_centroids(index_dir, manifest)
        if centroids_fingerprint(centroids) != manifest.centroids_fingerprint:
            problems.append("the centroids' fingerprint is not the manifest's")
    extents = read_extents(index_dir, manifest)
    # The rows of a cluster have no numbers of their own: the array of documents counts them.
    places = read_document_rows(index_dir, manifest, extents)
    seen = np.zeros(manifest.row_count, dtype=np.uint8)
    np.add.at(seen, places[places != NO_ROW], 1)
    before = len(problems)
    progress.start("clusters", len(extents))
    for segment in range(manifest.segment_count):
        with _listed(problems, index_dir / segment_name(segment)):
            _check_segment(index_dir, manifest, extents, segment, problems, progress)
    if len(problems) == before and not (seen == 1).all():
        row = int(np.flatnonzero(seen != 1)[0])
        found = "more than one" if seen[row] else "none"
        problems.append(
            f"{int((seen != 1).sum())} of {len(seen)} rows are not in exactly one cluster: row "
            f"{row} is in {found}"
        )


def _check_segment(
    index_dir: Path,
    manifest: Manifest,
    extents: tuple[ClusterExtent, ...],
    segment: int,
    problems: list[str],
    progress: ProgressReport,
) -> None:
    """Reads a segment: its header and every page of every cluster."""
    path, layout = index_dir / segment_name(segment), manifest.layout()
    with os.fdopen(open_regular(path), "rb", buffering=0) as file:
        with _listed(problems, path):
            check_header(path, layout, extents, build_id=manifest.build_id, segment=segment)
        for extent in (each for each in extents if each.segment == segment):
            with _listed(problems, path):
                sums = CheckedFile.open(path, manifest.build_id, manifest.files)
                pages = read_cluster(
                    file.fileno(), extent, layout=layout, path=str(path), sums=sums
                )
                norms = np.linalg.norm(dense(pages).vectors, axis=1)
                if not (np.abs(norms - 1) <= NORM_TOLERANCE).all():
                    problems.append(
                        f"cluster {extent.cluster} contains a vector that is not normalised"
                    )
            progress.advance(1)


def _check_codes(
    index_dir: Path, manifest: Manifest, problems: list[str], progress: ProgressReport
) -> None:
    """Reads every page of the codes."""
    names = [
        codes_name(one.codec, segment)
        for one in manifest.codes
        for segment in range(manifest.segment_count)
    ]
    progress.start("codes", len(names))
    for name in names:
        with _listed(problems, index_dir / name):
            file = CheckedFile.open(index_dir / name, manifest.build_id, manifest.files)
            for page in range(0, file.page_count, CODE_CHUNK_PAGES):
                count = min(CODE_CHUNK_PAGES, file.page_count - page)
                file.read(page * PAGE_BYTES, count * PAGE_BYTES)
        progress.advance(1)


def _check_documents(
    index_dir: Path, manifest: Manifest, problems: list[str], progress: ProgressReport
) -> None:
    progress.start("documents", manifest.row_count)
    with DocumentStore.open(index_dir, manifest) as store:
        check_no_hole(store.offsets_descriptor, index_dir / OFFSETS_NAME)
        for number in range(manifest.row_count):
            with _listed(problems, index_dir / DOCUMENTS_NAME):
                store.document(number)
            progress.advance(1)

"""Checks every byte of an index and lists all damage."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from carpool.disk.centroids import CENTROIDS_NAME, centroids_fingerprint, read_centroids
from carpool.disk.checked_file import PAGE_BYTES, SUM_SUFFIX, CheckedFile
from carpool.disk.code_files import codes_name
from carpool.disk.document_rows import DOCUMENT_ROWS_NAME, NO_ROW, read_document_rows
from carpool.disk.documents import DOCUMENTS_NAME, OFFSETS_NAME, DocumentStore
from carpool.disk.extent_table import EXTENTS_NAME, read_extents
from carpool.disk.extents import ClusterExtent, segment_name
from carpool.disk.files import check_no_hole, file_crc32, open_regular
from carpool.disk.index import files_of
from carpool.disk.manifest import Manifest, read_manifest
from carpool.disk.pages import ClusterRows, dense
from carpool.disk.rotation import ROTATION_NAME
from carpool.disk.segments import check_header, read_cluster
from carpool.errors import CarpoolError, CorruptionError
from indexer.progress import ProgressReport
from indexer.sequential import drop_cached
from indexer.vectors import NORM_TOLERANCE

DOCUMENT_CHUNK_ROWS = 1024
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
    problems = _check_files(index_dir, manifest, progress)
    problems += _check_centroids(index_dir, manifest)
    problems += _check_clusters(index_dir, manifest, progress)
    problems += _check_codes(index_dir, manifest, progress)
    problems += _check_documents(index_dir, manifest, progress)
    return VerifyReport(
        problems=tuple(dict.fromkeys(problems)),
        cluster_count=manifest.nlist,
        row_count=manifest.row_count,
        size_bytes=sum(entry.size_bytes for entry in manifest.files.values()),
    )


def _check_files(index_dir: Path, manifest: Manifest, progress: ProgressReport) -> list[str]:
    """Checks the sizes of all files and the checksums of the tables."""
    problems = []
    names = files_of(manifest)
    progress.start("files", len(names))
    for name in names:
        path, entry = index_dir / name, manifest.files.get(name)
        try:
            if entry is None:
                problems.append(f"the manifest does not list {name}")
            elif not path.is_file():
                problems.append(f"{path} is missing, or no regular file")
            elif path.stat().st_size != entry.size_bytes:
                problems.append(f"{path} has {path.stat().st_size} bytes, not {entry.size_bytes}")
            elif (name in TABLES or name.endswith(SUM_SUFFIX)) and file_crc32(path) != entry.crc32:
                problems.append(f"{path} is damaged: its checksum is not the manifest's")
        except CorruptionError as error:
            problems.append(str(error))
        except OSError as error:
            problems.append(f"{path} cannot be read: {error.strerror}")
        progress.advance(1)
    return problems


def _check_centroids(index_dir: Path, manifest: Manifest) -> list[str]:
    try:
        centroids = read_centroids(index_dir, manifest)
    except CarpoolError as error:
        return [str(error)]
    problems = []
    if centroids_fingerprint(centroids) != manifest.centroids_fingerprint:
        problems.append("the centroids' fingerprint is not the manifest's")
    return problems


def _check_clusters(index_dir: Path, manifest: Manifest, progress: ProgressReport) -> list[str]:
    try:
        extents = read_extents(index_dir, manifest)
    except CarpoolError as error:
        return [str(error)]
    problems: list[str] = []
    seen = np.zeros(manifest.row_count, dtype=np.uint8)
    # The rows of a cluster have no numbers of their own: the array of documents counts them.
    try:
        places = read_document_rows(index_dir, manifest, extents)
    except CarpoolError as error:
        return [str(error)]
    np.add.at(seen, places[places != NO_ROW], 1)
    progress.start("clusters", len(extents))
    for segment in range(manifest.segment_count):
        problems += _check_segment(index_dir, manifest, extents, segment, progress)
    if not problems and not (seen == 1).all():
        row = int(np.flatnonzero(seen != 1)[0])
        found = "more than one" if seen[row] else "none"
        problems.append(
            f"{int((seen != 1).sum())} of {len(seen)} rows are not in exactly one cluster: row "
            f"{row} is in {found}"
        )
    return problems


def _check_segment(
    index_dir: Path,
    manifest: Manifest,
    extents: tuple[ClusterExtent, ...],
    segment: int,
    progress: ProgressReport,
) -> list[str]:
    """Reads a segment: its header and every page of every cluster."""
    path, layout = index_dir / segment_name(segment), manifest.layout()
    problems = []
    try:
        descriptor = open_regular(path)
    except CorruptionError as error:
        return [str(error)]
    except OSError as error:
        return [f"{path} cannot be read: {error.strerror}"]
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        try:
            check_header(path, layout, extents, build_id=manifest.build_id, segment=segment)
        except CorruptionError as error:
            problems.append(str(error))
        for extent in extents:
            if extent.segment != segment:
                continue
            try:
                sums = CheckedFile.open(path, manifest.build_id, manifest.files)
                pages = read_cluster(
                    file.fileno(), extent, layout=layout, path=str(path), sums=sums
                )
                problems += _check_norms(dense(pages))
            except CorruptionError as error:
                problems.append(str(error))
            os.posix_fadvise(
                file.fileno(), extent.offset_bytes, extent.size_bytes, os.POSIX_FADV_DONTNEED
            )
            progress.advance(1)
    return problems


def _check_norms(cluster: ClusterRows) -> list[str]:
    if not (np.abs(np.linalg.norm(cluster.vectors, axis=1) - 1) <= NORM_TOLERANCE).all():
        return [f"cluster {cluster.cluster} contains a vector that is not normalised"]
    return []


def _check_codes(index_dir: Path, manifest: Manifest, progress: ProgressReport) -> list[str]:
    """Reads every page of the codes."""
    names = [
        codes_name(one.codec, segment)
        for one in manifest.codes
        for segment in range(manifest.segment_count)
    ]
    problems = []
    progress.start("codes", len(names))
    for name in names:
        try:
            file = CheckedFile.open(index_dir / name, manifest.build_id, manifest.files)
            for page in range(0, file.page_count, CODE_CHUNK_PAGES):
                count = min(CODE_CHUNK_PAGES, file.page_count - page)
                file.read(page * PAGE_BYTES, count * PAGE_BYTES)
        except CorruptionError as error:
            problems.append(str(error))
        except (KeyError, OSError) as error:
            problems.append(f"{index_dir / name} cannot be read: {error}")
        drop_cached(index_dir / name)
        progress.advance(1)
    return problems


def _check_documents(index_dir: Path, manifest: Manifest, progress: ProgressReport) -> list[str]:
    try:
        store = DocumentStore.open(index_dir, manifest)
    except CarpoolError as error:
        return [str(error)]
    except OSError as error:
        return [f"{index_dir / DOCUMENTS_NAME} or {OFFSETS_NAME} cannot be read: {error.strerror}"]
    problems: list[str] = []
    progress.start("documents", manifest.row_count)
    with store:
        try:
            check_no_hole(store.offsets_descriptor, index_dir / OFFSETS_NAME)
        except CorruptionError as error:
            return [str(error)]
        for start in range(0, manifest.row_count, DOCUMENT_CHUNK_ROWS):
            rows = range(start, min(start + DOCUMENT_CHUNK_ROWS, manifest.row_count))
            for row in rows:
                try:
                    store.get((row,))
                except CorruptionError as error:
                    problems.append(str(error))
            progress.advance(len(rows))
    for name in (DOCUMENTS_NAME, OFFSETS_NAME):
        drop_cached(index_dir / name)
    return problems

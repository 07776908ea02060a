"""Checks every byte of an index and lists all damage."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from carpool.disk.centroids import CENTROIDS_NAME, centroids_fingerprint, read_centroids
from carpool.disk.checked_file import PAGE_BYTES, SUM_SUFFIX, CheckedFile
from carpool.disk.document_keys import DOCUMENT_KEYS_NAME, DocumentKeys
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
TABLES = (
    CENTROIDS_NAME,
    EXTENTS_NAME,
    OFFSETS_NAME,
    DOCUMENT_ROWS_NAME,
    DOCUMENT_KEYS_NAME,
    ROTATION_NAME,
)


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """What was read, and one sentence for each problem; none: the index is undamaged."""

    problems: tuple[str, ...]
    clusters: int = 0
    rows: int = 0
    size_bytes: int = 0


def verify_index(index_dir: Path, progress: ProgressReport) -> VerifyReport:
    """Returns the damage of the index at `index_dir`. Reads everything, blocks.

    Raises `ConfigError` where there is no index of this format; damage is listed, not raised.
    """
    try:
        manifest = read_manifest(index_dir)
    except CorruptionError as error:
        return VerifyReport(problems=(str(error),))
    found = _Verification(index_dir, manifest, progress)
    for check in (found.files, found.clusters, found.codes, found.documents):
        with found.listed(index_dir):
            check()
    return VerifyReport(
        problems=tuple(dict.fromkeys(found.problems)),
        clusters=manifest.cluster_count,
        rows=manifest.row_count,
        size_bytes=sum(entry.size_bytes for entry in manifest.files.values()),
    )


@dataclass
class _Verification:
    """Reads the parts of an index, and lists what is wrong."""

    index_dir: Path
    manifest: Manifest
    progress: ProgressReport
    problems: list[str] = field(default_factory=list)

    @contextmanager
    def listed(self, path: Path) -> Iterator[None]:
        """Adds damage that is raised, and that `path` cannot be read, to the problems."""
        try:
            yield
        except CarpoolError as error:
            self.problems.append(str(error))
        except OSError as error:
            self.problems.append(f"{error.filename or path} cannot be read: {error.strerror}")
        except KeyError as error:
            self.problems.append(f"the manifest does not list {error.args[0]}")

    def files(self) -> None:
        """Checks the sizes of all files, and the checksums of the tables."""
        names = files_of(self.manifest)
        self.progress.start("files", len(names))
        for name in names:
            path = self.index_dir / name
            with self.listed(path):
                entry = self.manifest.files[name]
                check_size(path, entry.size_bytes)
                has_sum = name in TABLES or name.endswith(SUM_SUFFIX)
                if has_sum and file_crc32(path) != entry.crc32:
                    self.problems.append(f"{path} is damaged: its checksum is not the manifest's")
            self.progress.advance(1)

    def clusters(self) -> None:
        """Reads every cluster, and checks that each row is in exactly one."""
        manifest, before = self.manifest, len(self.problems)
        with self.listed(self.index_dir / CENTROIDS_NAME):
            centroids = read_centroids(self.index_dir, manifest)
            if centroids_fingerprint(centroids) != manifest.centroids_fingerprint:
                self.problems.append("the centroids' fingerprint is not the manifest's")
        extents = read_extents(self.index_dir, manifest)
        # The rows of a cluster have no numbers of their own: the array of documents counts them.
        places = read_document_rows(self.index_dir, manifest, extents)
        seen = np.zeros(manifest.row_count, dtype=np.uint8)
        np.add.at(seen, places[places != NO_ROW], 1)
        self.progress.start("clusters", len(extents))
        for segment in range(manifest.segment_count):
            with self.listed(self.index_dir / segment_name(segment)):
                self._segment(extents, segment)
        if len(self.problems) == before and not (seen == 1).all():
            row = int(np.flatnonzero(seen != 1)[0])
            found = "more than one" if seen[row] else "none"
            self.problems.append(
                f"{int((seen != 1).sum())} of {len(seen)} rows are not in exactly one cluster: row "
                f"{row} is in {found}"
            )

    def _segment(self, extents: tuple[ClusterExtent, ...], segment: int) -> None:
        """Reads a segment: its header and every page of every cluster."""
        manifest, layout = self.manifest, self.manifest.layout()
        path = self.index_dir / segment_name(segment)
        with os.fdopen(open_regular(path), "rb", buffering=0) as file:
            with self.listed(path):
                check_header(path, layout, extents, build_id=manifest.build_id, segment=segment)
            for extent in (each for each in extents if each.segment == segment):
                with self.listed(path):
                    sums = CheckedFile.open(path, manifest.build_id, manifest.files)
                    pages = read_cluster(
                        file.fileno(), extent, layout=layout, path=str(path), sums=sums
                    )
                    norms = np.linalg.norm(dense(pages).vectors, axis=1)
                    if not (np.abs(norms - 1) <= NORM_TOLERANCE).all():
                        self.problems.append(
                            f"cluster {extent.cluster} contains a vector that is not normalised"
                        )
                self.progress.advance(1)

    def codes(self) -> None:
        """Reads every page of the codes."""
        manifest, segments = self.manifest, range(self.manifest.segment_count)
        names = [codes_name(one.codec, segment) for one in manifest.codes for segment in segments]
        self.progress.start("codes", len(names))
        for path in map(self.index_dir.joinpath, names):
            with self.listed(path):
                file = CheckedFile.open(path, manifest.build_id, manifest.files)
                for page in range(0, file.page_count, CODE_CHUNK_PAGES):
                    count = min(CODE_CHUNK_PAGES, file.page_count - page)
                    file.read(page * PAGE_BYTES, count * PAGE_BYTES)
            self.progress.advance(1)

    def documents(self) -> None:
        """Reads every document, and checks that each passage is of one in the table."""
        if DOCUMENT_KEYS_NAME in self.manifest.files:
            with self.listed(self.index_dir / DOCUMENT_KEYS_NAME):
                DocumentKeys.open(self.index_dir, self.manifest).check()
        self.progress.start("documents", self.manifest.row_count)
        with DocumentStore.open(self.index_dir, self.manifest) as store:
            check_no_hole(store.offsets_descriptor, self.index_dir / OFFSETS_NAME)
            for number in range(self.manifest.row_count):
                with self.listed(self.index_dir / DOCUMENTS_NAME):
                    store.document(number)
                self.progress.advance(1)

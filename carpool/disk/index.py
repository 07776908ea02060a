"""Opens an index: reads manifest, centroids and extents, and checks the sizes of all files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from carpool.arrays import Float32, Int64
from carpool.codes.codec import CODEC, CodeLayout
from carpool.disk.centroids import CENTROIDS_NAME, centroids_fingerprint, read_centroids
from carpool.disk.checked_file import CheckedFile
from carpool.disk.document_keys import DOCUMENT_KEYS_NAME
from carpool.disk.document_rows import DOCUMENT_ROWS_NAME, first_rows, read_document_rows
from carpool.disk.documents import DOCUMENTS_NAME, OFFSETS_NAME, DocumentStore
from carpool.disk.extent_table import EXTENTS_NAME, read_extents
from carpool.disk.extents import ClusterExtent, CodeExtent, codes_name, plan_codes, segment_name
from carpool.disk.files import check_size, damage
from carpool.disk.manifest import Manifest, read_manifest
from carpool.disk.pages import ClusterPages, PageLayout
from carpool.disk.rotation import ROTATION_NAME, read_rotation
from carpool.disk.segments import check_header, read_cluster, segment_files
from carpool.errors import ConfigError


def index_files(
    segment_count: int, codecs: Sequence[str] = (), *, has_keys: bool = True
) -> tuple[str, ...]:
    """Returns the name of every file of an index but the manifest.

    `has_keys`: there is a table of documents, which earlier builds did not write.
    """
    keys = (DOCUMENT_KEYS_NAME,) if has_keys else ()
    tables = (CENTROIDS_NAME, EXTENTS_NAME, ROTATION_NAME, DOCUMENT_ROWS_NAME, *keys)
    segments = segment_files(segment_count, codecs)
    return (*tables, *segments, DOCUMENTS_NAME, OFFSETS_NAME)


def files_of(manifest: Manifest) -> tuple[str, ...]:
    """Returns the name of every file of the index of `manifest`, but the manifest."""
    codecs, has_keys = [one.codec for one in manifest.codes], DOCUMENT_KEYS_NAME in manifest.files
    return index_files(manifest.segment_count, codecs, has_keys=has_keys)


@dataclass(frozen=True, kw_only=True)
class OpenCodes:
    """The codes of an index. `extents`: by cluster; `files`: by segment.

    `first_rows` and `row_counts`, (clusters,) int64, are the rows of each cluster; `rotation` is
    (dim, dim) float32.
    """

    layout: CodeLayout
    extents: tuple[CodeExtent, ...]
    files: tuple[CheckedFile, ...]
    first_rows: Int64
    row_counts: Int64
    rotation: Float32

    @property
    def size_bytes(self) -> int:
        """Bytes of all codes in memory: whole pages, as they are read."""
        return sum(extent.read_bytes for extent in self.extents)


@dataclass(frozen=True, kw_only=True)
class OpenIndex:
    """An open index. `extents` are indexed by cluster, `segment_paths` by segment.

    `row_sums`: the side files of the segments. The caller of `open_index` closes it.
    """

    dir: Path
    manifest: Manifest
    layout: PageLayout
    centroids: Float32
    extents: tuple[ClusterExtent, ...]
    segment_paths: tuple[Path, ...]
    documents: DocumentStore
    row_sums: tuple[CheckedFile, ...]

    @property
    def scan_centroids(self) -> Float32:
        """The centroids of all clusters: (clusters, dim) float32, with that of the zero cluster."""
        zeros = np.zeros((len(self.manifest.zero_clusters), self.manifest.dimension), np.float32)
        return np.concatenate([self.centroids, zeros])

    def open_codes(self) -> OpenCodes | None:
        """Returns the codes; None where there are none. Reads their checksums. Blocks.

        Raises `CorruptionError`, and `ConfigError` where the codes are not of `CODEC`.
        """
        manifest = self.manifest
        if not manifest.codes:
            return None
        layout = next((one for one in manifest.codes if one.codec == CODEC), None)
        if layout is None:
            found = ", ".join(one.codec for one in manifest.codes)
            raise ConfigError(
                f"the index at {self.dir} has codes of {found}, and this version scans {CODEC}; "
                f"make new ones, all else stays as it is: carpool index codes {self.dir}"
            )
        return OpenCodes(
            layout=layout,
            extents=plan_codes(layout, self.extents),
            files=tuple(
                _checked(self.dir, codes_name(CODEC, segment), manifest)
                for segment in range(manifest.segment_count)
            ),
            first_rows=first_rows(self.layout, self.extents),
            row_counts=np.array([extent.row_count for extent in self.extents], np.int64),
            rotation=read_rotation(self.dir, manifest),
        )

    def clusters_of(self, segment: int) -> Iterator[ClusterPages]:
        """Yields the clusters of a segment in order, verified, one in memory at a time. For tools.

        Reads through the page cache; blocks. Raises `CorruptionError`.
        """
        path, sums = self.segment_paths[segment], self.row_sums[segment]
        with path.open("rb") as file:
            for extent in self.extents:
                if extent.segment == segment:
                    yield read_cluster(
                        file.fileno(), extent, layout=self.layout, path=str(path), sums=sums
                    )

    def close(self) -> None:
        """Closes the document store."""
        self.documents.close()


def open_index(index_dir: Path) -> OpenIndex:
    """Returns the index at `index_dir`. Verifies small files; of large ones, size and header.

    Blocks. Clusters and documents are verified when they are read. Raises `ConfigError` where there
    is no index of this format, `CorruptionError` where a file is missing, cut short or damaged.
    """
    manifest = read_manifest(index_dir)
    layout = manifest.layout()
    check_sizes(index_dir, manifest)
    centroids = read_centroids(index_dir, manifest)
    if centroids_fingerprint(centroids) != manifest.centroids_fingerprint:
        raise damage(index_dir / CENTROIDS_NAME, "has another fingerprint than the manifest says")
    extents = read_extents(index_dir, manifest)
    segment_paths = tuple(
        index_dir / segment_name(segment) for segment in range(manifest.segment_count)
    )
    for segment, segment_path in enumerate(segment_paths):
        check_header(segment_path, layout, extents, build_id=manifest.build_id, segment=segment)
    documents = DocumentStore.open(
        index_dir, manifest, read_document_rows(index_dir, manifest, extents)
    )
    row_sums = tuple(_checked(index_dir, path.name, manifest) for path in segment_paths)
    return OpenIndex(
        dir=index_dir,
        manifest=manifest,
        layout=layout,
        centroids=centroids,
        extents=extents,
        segment_paths=segment_paths,
        documents=documents,
        row_sums=row_sums,
    )


def _checked(index_dir: Path, name: str, manifest: Manifest) -> CheckedFile:
    return CheckedFile.open(index_dir / name, manifest.build_id, manifest.files)


def check_sizes(index_dir: Path, manifest: Manifest) -> None:
    """Raises `CorruptionError` for the first missing file or wrong size."""
    for name in files_of(manifest):
        check_size(index_dir / name, manifest.file(name).size_bytes)

"""The index and the questions of a run, as contestants and oracles need them. Only this module
knows the format on disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.micro.disk import Read
from bench.retrieval.contestant import Float32, Int32, Int64
from bench.retrieval.measure import RATE_QUERIES_MIN
from carpool.disk.centroids import probe
from carpool.disk.extents import ClusterExtent
from carpool.disk.index import open_index
from carpool.disk.manifest import Manifest
from carpool.disk.pages import ClusterRows, PageLayout, dense
from carpool.disk.segments import read_cluster
from carpool.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class IndexView:
    """An index as the bench sees it. `cluster_bytes`: (nlist,) int64, what reading each cluster
    costs; `reads`: where it lies.
    """

    dir: Path
    manifest: Manifest
    centroids: Float32
    cluster_bytes: Int64
    reads: tuple[Read, ...]
    extents: tuple[ClusterExtent, ...]
    segment_paths: tuple[Path, ...]
    layout: PageLayout

    @property
    def version(self) -> str:
        """The version that the manifest says."""
        return self.manifest.index_version

    @property
    def dimension(self) -> int:
        """Of the vectors."""
        return self.manifest.dimension

    @property
    def nlist(self) -> int:
        """Clusters."""
        return self.manifest.nlist

    @property
    def row_count(self) -> int:
        """Vectors."""
        return self.manifest.row_count

    @property
    def vectors_bytes(self) -> int:
        """Bytes of the vectors: what --memory is a share of."""
        return self.row_count * self.layout.row_bytes

    def clusters(self) -> Iterator[ClusterRows]:
        """Yields every cluster in ascending order, verified. Memory for one."""
        with ExitStack() as stack:
            files = [stack.enter_context(path.open("rb")) for path in self.segment_paths]
            for extent in self.extents:
                pages = read_cluster(
                    files[extent.segment].fileno(),
                    extent,
                    layout=self.layout,
                    build_id=self.manifest.build_id,
                    path=str(self.segment_paths[extent.segment]),
                )
                yield dense(pages)


def open_view(index_dir: Path) -> IndexView:
    """Returns the index at `index_dir`. Raises `ConfigError` where there is none, `CorruptionError`
    where it is damaged.
    """
    opened = open_index(index_dir)
    opened.close()  # the documents are not needed
    extents = opened.extents
    return IndexView(
        dir=index_dir,
        manifest=opened.manifest,
        centroids=opened.centroids,
        cluster_bytes=np.array([extent.size_bytes for extent in extents], dtype=np.int64),
        reads=tuple(
            Read(
                path=opened.segment_paths[extent.segment],
                offset_bytes=extent.offset_bytes,
                size_bytes=extent.size_bytes,
            )
            for extent in extents
        ),
        extents=extents,
        segment_paths=opened.segment_paths,
        layout=opened.layout,
    )


@dataclass(frozen=True, kw_only=True)
class Questions:
    """Questions in the order of their arrival. `vectors`: (n, dim) float32, distinct; the first
    `closed` of them are asked in the closed loop, the rest are left for the open one.
    """

    vectors: Float32
    closed: int

    @property
    def closed_numbers(self) -> list[int]:
        """Rows of the closed loop."""
        return list(range(self.closed))

    @property
    def open_numbers(self) -> list[int]:
        """Rows of the open loop: those that the closed loop did not ask, or all where too few are
        left for the p99 of a rate: no contestant keeps results.
        """
        left = len(self.vectors) - self.closed
        return list(range(self.closed if left >= RATE_QUERIES_MIN else 0, len(self.vectors)))


def choose_questions(
    vectors: Float32, dimension: int, count: int, seed: int, left_out: int = 0
) -> Questions:
    """Returns the questions of a seed: `vectors`, (n, dim) float32, less those that are there
    twice, in a random order.

    `left_out`: questions that `vectors` has not, since a grown set was fitted with them. Raises
    `ConfigError` where the dimension is another one, or there are fewer than `count`.
    """
    if vectors.ndim != 2 or vectors.shape[1] != dimension:
        raise ConfigError(
            f"the questions have vectors of shape {vectors.shape}, and the index is of dimension "
            f"{dimension}: they were made by "
            "another model. Give --questions the vectors of the model that the index was built with"
        )
    _, first = np.unique(vectors, axis=0, return_index=True)
    if len(first) < count:
        fitted = (
            f" beside {left_out} that the grown set was fitted with, which are never asked"
            if left_out
            else ""
        )
        raise ConfigError(
            f"there are {len(first)} distinct questions{fitted}, and --queries asks for {count}: a "
            "question asked twice would "
            "find its clusters warm. Ask for fewer, or name a file of more with --questions"
        )
    order = np.random.default_rng(seed).permutation(np.sort(first))
    return Questions(vectors=np.ascontiguousarray(vectors[order]), closed=count)


def probes_of(view: IndexView, questions: Questions, nprobe: int) -> Int32:
    """Returns C(q) of every question: (n, nprobe) int32, nearest first: the same for every
    contestant, not timed.
    """
    if nprobe > view.nlist:
        raise ConfigError(f"--nprobe {nprobe} is more than the {view.nlist} clusters of {view.dir}")
    return probe(view.centroids, questions.vectors, nprobe)


def index_for(indexes: Sequence[Path], seed: int) -> Path:
    """Returns the index of a seed: one for each, or the same for all. Raises `ConfigError` for
    another number of them.
    """
    if len(indexes) == 1:
        return indexes[0]
    if seed >= len(indexes):
        raise ConfigError(
            f"there are {len(indexes)} indexes and seed {seed}: give --index once, or once for "
            "each seed (in each the passages in another order, clustered from another seed)"
        )
    return indexes[seed]

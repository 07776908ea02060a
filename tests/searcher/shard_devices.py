"""Devices of the shard to test, clusters to load, and the rows that an exact search would find."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest

from carpool.codes.margin import SQ8_REACH, margin
from carpool.disk.rotation import random_rotation
from schemas.record import ClusterId
from searcher.shard.device import ShardDevice, ShardNumbers
from searcher.shard.gpu import LIBRARY_BYTES, GpuShard
from tests.searcher.codes_rig import around, directions
from tests.searcher.helpers import row_mask

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

DIMENSION = 48
NLIST = 9
COUNTS = (700, 0, 1, 31, 32, 33, 266, 500, 0)
"""Rows of the clusters."""
BUDGET_BYTES = 2 << 20


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of device. `error`: how far its estimates are from products of what it stores."""

    open: Callable[[int, Float32, int], ShardDevice]
    numbers: ShardNumbers
    error: float

    def make(self, bytes_max: int = BUDGET_BYTES, dimension: int = DIMENSION) -> ShardDevice:
        """Returns an empty device."""
        return self.open(NLIST, random_rotation(dimension, 0), bytes_max)


def _gpu(numbers: ShardNumbers, device: str) -> Kind:
    is_cuda = device == "cuda"

    def open_it(nlist: int, rotation: Float32, bytes_max: int) -> ShardDevice:
        bytes_max += LIBRARY_BYTES if is_cuda else 0
        return GpuShard(numbers, nlist=nlist, rotation=rotation, bytes_max=bytes_max, device=device)

    # A GPU rounds queries to float16.
    return Kind(open=open_it, numbers=numbers, error=4e-4 if is_cuda else 2e-6)


KINDS = {
    "ram-float16": _gpu("float16", "cpu"),
    "ram-sq8": _gpu("sq8", "cpu"),
    "gpu-float16": _gpu("float16", "cuda"),
    "gpu-sq8": _gpu("sq8", "cuda"),
}
NEEDS_GPU = ("gpu-float16", "gpu-sq8")
EVERY_KIND = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, id=name, marks=[pytest.mark.gpu] if name in NEEDS_GPU else [])
        for name, kind in KINDS.items()
    ],
)


@dataclass(frozen=True, kw_only=True)
class LoadedCluster:
    """What was given to the device, and what it stores: (n, dim) float32 each."""

    first_row: int
    vectors: Float32
    stored: Float32

    @property
    def end_row(self) -> int:
        return self.first_row + len(self.vectors)


@dataclass
class Loaded:
    """A device, and what was loaded into it, by cluster."""

    device: ShardDevice
    kind: Kind
    dimension: int = DIMENSION
    clusters: dict[int, LoadedCluster] = field(default_factory=dict)
    next_row: int = 10
    are_visible: npt.NDArray[np.bool_] | None = None

    def load(self, cluster: int, row_count: int) -> None:
        """Loads made-up vectors under row numbers that were never used before."""
        vectors = directions(row_count, self.dimension, seed=self.next_row)
        self.load_rows(cluster, self.next_row, vectors)
        self.next_row += row_count + 3

    def load_rows(self, cluster: int, first_row: int, vectors: Float32) -> None:
        """Loads `vectors`, which the device must have copied."""
        given = vectors.copy()
        self.device.load(ClusterId(cluster), first_row, given)
        given[:] = 9
        self.clusters[cluster] = LoadedCluster(
            first_row=first_row, vectors=vectors, stored=self._stored(vectors)
        )

    def drop(self, cluster: int) -> None:
        self.device.drop(ClusterId(cluster))
        del self.clusters[cluster]

    @property
    def size_bytes(self) -> int:
        """What all loaded clusters take."""
        return sum(self.device.size_bytes(len(one.vectors)) for one in self.clusters.values())

    def check_scan(self, queries: Float32, probes: Sequence[Sequence[int]], count: int) -> None:
        """Scans, and compares with the obvious search of what is loaded."""
        mask = None if self.are_visible is None else row_mask(self.are_visible)
        wanted = [np.array(one, np.int64) for one in probes]
        found, estimates = self.device.scan(queries, wanted, count, mask)
        assert found.shape == estimates.shape == (len(queries), count)
        assert (found.dtype, estimates.dtype) == (np.int64, np.float32)
        for query, probe, rows, guesses in zip(queries, probes, found, estimates, strict=True):
            self._check_query(query, probe, rows, guesses)

    def _check_query(
        self, query: Float32, probe: Sequence[int], found: Int64, estimates: Float32
    ) -> None:
        rows, exact, stored, tolerances = self._scores(query, probe)
        length = min(len(found), len(rows))
        assert (found[:length] >= 0).all() and (found[length:] == -1).all()
        found, estimates = found[:length], estimates[:length]
        assert len(set(found.tolist())) == length and set(found.tolist()) <= set(rows.tolist())
        assert (np.diff(estimates) <= 0).all()
        at = np.argsort(rows)[np.searchsorted(np.sort(rows), found)]
        assert (np.abs(estimates - stored[at]) <= tolerances[at]).all()
        # Which of two rows comes first is open only where their scores are nearly the same.
        best = np.sort(stored)[::-1][:length]
        assert (np.abs(estimates - best) <= tolerances.max(initial=0)).all()
        width = 2 * margin(self.device.codec, self.dimension)
        assert (np.abs(estimates - exact[at]) <= width).all()

    def _scores(
        self, query: Float32, probe: Sequence[int]
    ) -> tuple[Int64, Float32, Float32, Float32]:
        """Row numbers of the probed clusters, their exact scores, those of what is stored, and how
        far estimates may be from the latter.
        """
        parts = [self.clusters[cluster] for cluster in probe]
        if not parts:
            return np.empty(0, np.int64), *np.empty((3, 0), np.float32)
        rows = np.concatenate([np.arange(one.first_row, one.end_row) for one in parts])
        exact = np.concatenate([one.vectors @ query for one in parts])
        stored = np.concatenate([one.stored @ query for one in parts])
        tolerances = np.concatenate([self._tolerances(one.vectors, query) for one in parts])
        shown = slice(None) if self.are_visible is None else self.are_visible[rows]
        return rows[shown], exact[shown], stored[shown], tolerances[shown]

    def _tolerances(self, vectors: Float32, query: Float32) -> Float32:
        """How far the estimate of each of `vectors` may be from the product of what is stored.

        A rotated number that is nearly on the border of two codes may get either: its last bits
        differ with the number of rows that are rotated together.
        """
        tolerances = np.full(len(vectors), self.kind.error, np.float32)
        if self.kind.numbers == "sq8":
            rotation = random_rotation(self.dimension, 0)
            reach = SQ8_REACH / np.sqrt(self.dimension)
            places = (vectors @ rotation + reach) / (2 * reach) * 255
            is_on_border = np.abs(places - np.round(places)) < 1e-3
            tolerances += is_on_border @ np.abs(query @ rotation) * (2 * reach / 255)
        return tolerances

    def _stored(self, vectors: Float32) -> Float32:
        """What the device stores for `vectors`, not rotated."""
        if self.kind.numbers == "float16":
            return vectors.astype(np.float16).astype(np.float32)
        rotation = random_rotation(self.dimension, 0)
        reach = np.float32(SQ8_REACH / np.sqrt(self.dimension))
        codes = np.clip(np.floor((vectors @ rotation + reach) / (2 * reach) * 255), 0, 255)
        # A code stands for the middle of its part of the range.
        return ((codes + np.float32(0.5)) / 255 * 2 * reach - reach) @ rotation.T


def loaded(kind: Kind, counts: Sequence[int] = COUNTS, dimension: int = DIMENSION) -> Loaded:
    """Returns a device with clusters of `counts` rows, all around the same direction."""
    it = Loaded(device=kind.make(dimension=dimension), kind=kind, dimension=dimension)
    for cluster, count in enumerate(counts):
        near = np.repeat(directions(1, dimension, 1), count, axis=0)
        it.load_rows(cluster, it.next_row, around(near, seed=cluster))
        it.next_row += count + 3
    return it


def some_queries(count: int, dimension: int = DIMENSION) -> Float32:
    """Returns directions around that of the rows."""
    return around(np.repeat(directions(1, dimension, 1), count, axis=0), seed=77)

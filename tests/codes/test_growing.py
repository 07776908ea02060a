"""Codes that grow: a view sees the same rows for ever, those of a scan of whole clusters."""

from __future__ import annotations

import numpy as np
import pytest

from carpool.arrays import Float32, Int64
from carpool.codes import growing
from carpool.codes.growing import GrowingCodes, View
from carpool.codes.int4 import CodeScanner, Encoder, code_layout
from carpool.codes.row_mask import RowMask, are_visible, new_mask, set_visible
from tests.seed import SEED

DIMENSION, CLUSTERS, COUNT = 20, 5, 7


class World:
    """Rows that were added, and what a view must find."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.centroids = self.numbers(CLUSTERS)
        self.rotation = np.eye(DIMENSION, dtype=np.float32)[self.rng.permutation(DIMENSION)]
        self.codes = GrowingCodes(self.centroids, self.rotation, 64)
        self.vectors = np.empty((0, DIMENSION), np.float32)
        self.clusters = np.empty(0, np.int64)
        self.places = np.empty(0, np.int64)

    def numbers(self, count: int) -> Float32:
        """Rows of eighths, whose sums are exact in any order."""
        return self.rng.integers(-20, 20, (count, DIMENSION)).astype(np.float32) / 8

    def add(self, count: int) -> bool:
        vectors = self.numbers(count)
        clusters = self.rng.integers(0, CLUSTERS, count)
        before = self.codes.blocks_used
        places = self.codes.add(vectors, clusters)
        if places is None:
            assert self.codes.blocks_used == before
            return False
        self.vectors = np.concatenate([self.vectors, vectors])
        self.clusters = np.concatenate([self.clusters, clusters])
        self.places = np.concatenate([self.places, places])
        assert len(np.unique(self.places)) == len(self.places)
        return True

    def mask(self) -> RowMask:
        """A mask that shows about half of the rows that there are."""
        mask = new_mask(self.codes.blocks_used * 16, is_visible=False)
        shown = self.places[self.rng.random(len(self.places)) < 0.5]
        set_visible(mask, shown, is_visible=True)
        return mask

    def expected(self, mask: RowMask, queries: Float32, probes: list[Int64]) -> list[object]:
        """Scans the same rows, cluster by cluster, as an index has them."""
        layout = code_layout(DIMENSION)
        encoder = Encoder(layout, self.centroids, self.rotation)
        counts = np.bincount(self.clusters, minlength=CLUSTERS)
        first_rows = np.cumsum([0, *counts[:-1]])
        scanner = CodeScanner(layout, self.centroids, self.rotation, first_rows, counts)
        order = np.argsort(self.clusters, kind="stable")
        for cluster in range(CLUSTERS):
            own = self.vectors[order[first_rows[cluster] :][: counts[cluster]]]
            scanner.load(cluster, np.frombuffer(encoder.encode(cluster, own), np.uint8))
        shown = are_visible(mask, self.places[order])
        row_mask = new_mask(len(order), is_visible=False)
        set_visible(row_mask, np.flatnonzero(shown), is_visible=True)
        rows, estimates = scanner.scan(queries, probes, len(order), row_mask)
        return [
            sorted(
                (round(float(estimate), 5), int(self.places[order[row]]))
                for row, estimate in zip(*pair, strict=True)
                if row >= 0
            )
            for pair in zip(rows, estimates, strict=True)
        ]

    def found(
        self, view: View, mask: RowMask, queries: Float32, probes: list[Int64]
    ) -> list[object]:
        proposed = self.codes.begin(queries, max(1, len(self.places)))
        self.codes.scan(view, mask, proposed, probes)
        return [
            sorted(
                (round(float(estimate), 5), int(place))
                for place, estimate in zip(one.rows, one.estimates, strict=True)
                if place >= 0
            )
            for one in proposed
        ]


@pytest.mark.parametrize("has_kernel", [True, False])
@pytest.mark.parametrize("seed", range(SEED, SEED + 5))
def test_a_view_finds_for_ever_what_a_scan_of_whole_clusters_finds(
    seed: int, has_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_kernel:
        monkeypatch.setattr(growing, "library", lambda: None)
    world = World(seed)
    queries = world.numbers(3)
    probes = [np.array([0, 3]), np.arange(CLUSTERS), np.array([], np.int64)]
    taken = []
    for _ in range(8):
        world.add(int(world.rng.integers(0, 40)))
        view, mask = world.codes.view(), world.mask()
        expected = world.expected(mask, queries, probes)
        taken.append((view, mask, expected))
        assert world.found(view, mask, queries, probes) == expected
        of_some = world.codes.places_of(view, probes[0])
        assert set(of_some.tolist()) == set(
            world.places[np.isin(world.clusters, probes[0])].tolist()
        )
    for view, mask, expected in taken:
        assert world.found(view, mask, queries, probes) == expected


def test_rows_that_do_not_fit_change_nothing() -> None:
    world = World(SEED)
    while world.add(30):
        pass
    view, mask = world.codes.view(), new_mask(64 * 16, is_visible=True)
    assert not world.add(30 * 16)
    queries = world.numbers(1)
    probes = [np.arange(CLUSTERS)]
    assert world.found(view, mask, queries, probes) == world.expected(mask, queries, probes)

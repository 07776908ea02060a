"""Every kernel scans codes alike, and errs as little as the margin says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from carpool.codes import int4
from carpool.codes.codec import CODEC
from carpool.codes.int4 import CodeScanner, Encoder, code_layout
from carpool.codes.kernel import kernels
from carpool.codes.margin import COUNT_MAX, first_count, margin
from carpool.disk.rotation import random_rotation
from carpool.errors import ConfigError
from tests.searcher.codes_rig import around, directions
from tests.searcher.helpers import row_mask

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

COUNTS = (700, 0, 1, 33, 266, 500)
"""Rows of the clusters."""
EVERY_KERNEL = pytest.mark.parametrize("kernel", kernels())
GAP = 5
"""Row numbers between two clusters that no row has."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows around their centroids: `vectors` (n, dim) of the numbers `rows` (n,)."""

    centroids: Float32
    vectors: Float32
    rows: Int64
    first_rows: Int64

    def of(self, cluster: int) -> Float32:
        """The vectors of a cluster."""
        start = sum(COUNTS[:cluster])
        return self.vectors[start : start + COUNTS[cluster]]

    def rows_of(self, clusters: Sequence[int]) -> set[int]:
        """The row numbers of clusters."""
        return {
            int(self.first_rows[cluster]) + row
            for cluster in clusters
            for row in range(COUNTS[cluster])
        }

    def scores(self, query: Float32, rows: Int64) -> Float32:
        """The true scores of rows."""
        found: Float32 = self.vectors[np.searchsorted(self.rows, rows)] @ query
        return found


def make_rows(dimension: int) -> Rows:
    centroids = directions(len(COUNTS), dimension, 1)
    firsts = np.cumsum([0, *(count + GAP for count in COUNTS[:-1])])
    return Rows(
        centroids=centroids,
        vectors=around(np.repeat(centroids, COUNTS, axis=0), seed=2),
        rows=np.concatenate(
            [np.arange(first, first + count) for first, count in zip(firsts, COUNTS, strict=True)]
        ),
        first_rows=firsts,
    )


def encoded(rows: Rows) -> list[npt.NDArray[np.uint8]]:
    dimension = rows.vectors.shape[1]
    encoder = Encoder(code_layout(dimension), rows.centroids, random_rotation(dimension, 0))
    return [
        np.frombuffer(encoder.encode(cluster, rows.of(cluster)), np.uint8)
        for cluster in range(len(COUNTS))
    ]


def make_scanner(
    rows: Rows, kernel: str | None = None, threads: int = 1, *, copies_bytes: int = 0
) -> CodeScanner:
    """A scanner with all codes in memory."""
    dimension = rows.vectors.shape[1]
    scanner = CodeScanner(
        code_layout(dimension),
        rows.centroids,
        random_rotation(dimension, 0),
        rows.first_rows,
        np.array(COUNTS),
        threads=threads,
        kernel=kernel,
        copies_bytes=copies_bytes,
    )
    for cluster, codes in enumerate(encoded(rows)):
        scanner.load(cluster, codes)
    return scanner


def arrays(*probes: list[int]) -> list[Int64]:
    return [np.array(one, np.int64) for one in probes]


def some_queries(rows: Rows, count: int) -> Float32:
    chosen = np.random.default_rng(7).integers(0, len(COUNTS), count)
    return around(rows.centroids[chosen], seed=8)


@EVERY_KERNEL
@pytest.mark.parametrize("dimension", [16, 60])
def test_a_scan_finds_every_row_of_the_probed_clusters_once(kernel: str, dimension: int) -> None:
    rows = make_rows(dimension)
    scanner = make_scanner(rows, kernel, threads=3)
    queries = some_queries(rows, 3)
    probes = [[0, 3, 1], [2], [5, 4, 3, 2, 1, 0]]
    found, estimates = scanner.scan(queries, [np.array(one) for one in probes], 2000)
    assert found.shape == estimates.shape == (3, 2000)
    for query, probe, numbers, scores in zip(queries, probes, found, estimates, strict=True):
        kept = numbers >= 0
        wanted = rows.rows_of(probe)
        assert kept.sum() == len(wanted) and set(numbers[kept].tolist()) == wanted
        assert kept[: len(wanted)].all() and (np.diff(scores[kept]) <= 0).all()
        error = margin(CODEC, dimension)
        assert np.abs(scores[kept] - rows.scores(query, numbers[kept])).mean() < error


@pytest.mark.parametrize("dimension", [16, 60, 384])
@pytest.mark.parametrize("count", [1, 30, 300])
def test_what_is_found_depends_on_no_kernel_and_no_number_of_threads(
    dimension: int, count: int
) -> None:
    rows = make_rows(dimension)
    rows.vectors[40:90] = rows.vectors[40]  # equal estimates
    queries = np.concatenate([some_queries(rows, 40), rows.vectors[40:41]])
    probes = [np.random.default_rng(at).permutation(6)[: 1 + at % 6] for at in range(41)]
    wanted, scores = make_scanner(rows).scan(queries, probes, count)
    for name in kernels():
        found, estimates = make_scanner(rows, name, threads=4).scan(queries, probes, count)
        if name == "numpy":  # it adds the numbers of a centroid in another order
            np.testing.assert_allclose(estimates, scores, rtol=0, atol=2e-6)
        else:
            np.testing.assert_array_equal(found, wanted)
            np.testing.assert_array_equal(estimates, scores)


@EVERY_KERNEL
@pytest.mark.parametrize("share", [0, 0.01, 0.5, 1])
def test_a_masked_scan_finds_what_is_left_of_a_ranking_of_all_rows(
    kernel: str, share: float
) -> None:
    rows = make_rows(60)
    rows.vectors[40:90] = rows.vectors[40]  # equal estimates
    scanner = make_scanner(rows, kernel, threads=3)
    queries = np.concatenate([some_queries(rows, 20), rows.vectors[40:41]])
    probes = [np.random.default_rng(at).permutation(6)[: 1 + at % 6] for at in range(21)]
    are_visible = np.random.default_rng(3).random(int(rows.rows[-1]) + 1) < share
    are_visible[sorted(rows.rows_of([3]))] = False
    ranked, scores = scanner.scan(queries, probes, 2000)
    found, estimates = scanner.scan(queries, probes, 50, row_mask(are_visible))
    for every, all_scores, mine, my_scores in zip(ranked, scores, found, estimates, strict=True):
        left = np.flatnonzero((every >= 0) & are_visible[every])[:50]
        none = 50 - len(left)
        assert mine.tolist() == every[left].tolist() + [-1] * none
        assert my_scores.tolist() == all_scores[left].tolist() + [-np.inf] * none


@EVERY_KERNEL
@pytest.mark.parametrize("dimension", [32, 384])
def test_few_estimates_err_by_more_than_the_margins(kernel: str, dimension: int) -> None:
    rows = make_rows(dimension)
    queries = some_queries(rows, 100)
    nearest = np.argsort(-queries @ rows.centroids.T, axis=1)[:, :2]
    found, estimates = make_scanner(rows, kernel).scan(queries, list(nearest), 100)
    errors = np.concatenate(
        [
            scores[numbers >= 0] - rows.scores(query, numbers[numbers >= 0])
            for query, numbers, scores in zip(queries, found, estimates, strict=True)
        ]
    )
    assert (np.abs(errors) > margin(CODEC, dimension)).mean() < 0.002


@EVERY_KERNEL
def test_a_cluster_that_is_dropped_is_not_found_until_it_is_loaded_again(kernel: str) -> None:
    rows = make_rows(60)
    scanner = make_scanner(rows, kernel)
    queries, probes = some_queries(rows, 20), [np.arange(len(COUNTS))] * 20
    before = scanner.scan(queries, probes, 50)
    scanner.drop(0)
    found, _ = scanner.scan(queries, probes, 2000)
    assert set(found[found >= 0].tolist()) == rows.rows_of([1, 2, 3, 4, 5])
    scanner.load(0, encoded(rows)[0])
    for one, other in zip(before, scanner.scan(queries, probes, 50), strict=True):
        np.testing.assert_array_equal(one, other)


@EVERY_KERNEL
def test_scans_of_some_clusters_each_find_what_one_scan_of_all_finds(kernel: str) -> None:
    rows = make_rows(60)
    rows.vectors[40:90] = rows.vectors[40]  # equal estimates
    scanner = make_scanner(rows, kernel, threads=3)
    queries = np.concatenate([some_queries(rows, 20), rows.vectors[40:41]])
    wanted, scores = scanner.scan(queries, [np.arange(len(COUNTS))] * 21, 50)
    proposed = [*scanner.begin(queries[:9], 50), *scanner.begin(queries[9:], 70)]
    scanner.add(proposed, arrays([2], [], [5, 1]) * 7)
    scanner.add(proposed[::-1], arrays([3, 0], [0, 4], [3, 4]) * 7)
    scanner.add(proposed, arrays([1, 5, 0], [1, 3, 5, 2], [2, 4]) * 7)
    for one, numbers, estimates in zip(proposed, wanted, scores, strict=True):
        best = np.lexsort((one.rows, -one.estimates))[:50]
        np.testing.assert_array_equal(one.rows[best], numbers)
        np.testing.assert_allclose(one.estimates[best], estimates, rtol=0, atol=1e-6)


@EVERY_KERNEL
def test_copies_take_the_blocks_of_what_was_dropped_wherever_they_are(kernel: str) -> None:
    rows = make_rows(60)
    queries, probes = some_queries(rows, 20), [np.arange(len(COUNTS))] * 20
    wanted = make_scanner(rows, kernel).scan(queries, probes, 50)
    codes = encoded(rows)
    scanner = make_scanner(rows, kernel, copies_bytes=sum(map(len, codes)))
    for dropped in ((0, 3), (5, 0, 2), (4, 1, 3)):
        for cluster in dropped:
            scanner.drop(cluster)
        for cluster in reversed(dropped):
            memory = codes[cluster].copy()
            scanner.load(cluster, memory)
            memory[:] = 0
        for one, other in zip(wanted, scanner.scan(queries, probes, 50), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("width", "probes"), [(60, [[6]]), (60, [[-1]]), (59, [[0]]), (60, [[0], [1]])]
)
def test_arrays_that_do_not_fit_the_index_are_refused(width: int, probes: list[list[int]]) -> None:
    scanner = make_scanner(make_rows(60))
    with pytest.raises(ValueError, match="fit"):
        scanner.scan(np.ones((1, width), np.float32), [np.array(one) for one in probes], 5)


def test_a_mask_that_lacks_rows_is_refused() -> None:
    rows = make_rows(60)
    queries, probes, end = some_queries(rows, 1), [np.arange(6)], int(rows.rows[-1]) + 1
    mask = row_mask(np.ones(end, np.bool_))
    for wrong in (mask[:-2], mask.astype(np.int8), np.repeat(mask, 2)[::2]):
        with pytest.raises(ValueError, match=f"rows below {end}"):
            make_scanner(rows).scan(queries, probes, 5, wrong)


def test_codes_are_as_good_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_rows(60)
    compiled = encoded(rows)
    monkeypatch.setattr(int4, "library", lambda: None)
    for one, other in zip(compiled, encoded(rows), strict=True):
        assert (one != other).sum() <= 0.05 * len(
            one
        )  # of two steps that are nearly as good, either is taken
    found, _ = make_scanner(rows).scan(some_queries(rows, 2), [np.arange(6)] * 2, 10)
    assert (found >= 0).all()


@pytest.mark.parametrize("has_kernel", [True, False])
@pytest.mark.parametrize("number", [np.nan, np.inf, 1e38])
def test_a_row_that_has_no_code_is_refused_with_its_number(
    has_kernel: bool, number: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_kernel:
        monkeypatch.setattr(int4, "library", lambda: None)
    rows = directions(20, 60, 3)
    rows[17, 5] = number
    encoder = Encoder(code_layout(60), directions(1, 60, 1), random_rotation(60, 0))
    with pytest.raises(ConfigError, match="row 17 of cluster 0 is not finite, or far too long"):
        encoder.encode(0, rows)


def test_codes_in_another_arrangement_are_refused() -> None:
    layout = code_layout(32)
    for other in (
        msgspec.structs.replace(layout, block_rows=layout.block_rows + 1),
        msgspec.structs.replace(layout, block_bytes=layout.block_bytes + 64),
    ):
        with pytest.raises(ConfigError, match="arranged"):
            CodeScanner(
                other,
                directions(1, 32, 1),
                random_rotation(32, 0),
                np.zeros(1, np.int64),
                np.ones(1, np.int64),
            )


@pytest.mark.parametrize("codec", [CODEC, "sq8", "float16"])
def test_a_first_scan_proposes_more_rows_than_are_asked_for(codec: str) -> None:
    for top_k in (1, 10, 100):
        assert top_k < first_count(codec, top_k) <= COUNT_MAX

"""Every codec does what encoder and scanner promise, and errs as little as its margin says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from carpool.codes.codec import CODECS, SQ8_REACH, parse_codecs
from carpool.codes.faiss_codes import CodeScanner, Encoder, code_layout
from carpool.codes.margin import COUNT_MAX, first_count, margin
from carpool.disk.rotation import random_rotation
from carpool.errors import ConfigError
from schemas.query import SearchMode
from tests.searcher.codes_rig import around, directions

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

COUNTS = (700, 0, 1, 33, 266, 500)
"""Rows of the clusters."""
EVERY_CODEC = pytest.mark.parametrize("codec", CODECS)
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


def make_rows(dimension: int, dtype: str = "float32") -> Rows:
    centroids = directions(len(COUNTS), dimension, 1)
    firsts = np.cumsum([0, *(count + GAP for count in COUNTS[:-1])])
    return Rows(
        centroids=centroids,
        vectors=around(np.repeat(centroids, COUNTS, axis=0), seed=2).astype(dtype).astype("<f4"),
        rows=np.concatenate(
            [np.arange(first, first + count) for first, count in zip(firsts, COUNTS, strict=True)]
        ),
        first_rows=firsts,
    )


def make_scanner(
    rows: Rows, codec: str, dtype: str = "float32"
) -> tuple[CodeScanner, list[npt.NDArray[np.uint8]]]:
    """A scanner with all codes in memory, and the codes of each cluster."""
    dimension = rows.vectors.shape[1]
    layout, rotation = code_layout(codec, dimension, dtype), random_rotation(dimension, 0)
    encoder = Encoder(layout, rows.centroids, rotation)
    codes = [
        np.frombuffer(encoder.encode(cluster, rows.of(cluster)), np.uint8)
        for cluster in range(len(COUNTS))
    ]
    for count, one in zip(COUNTS, codes, strict=True):
        assert len(one) == layout.size_bytes(count)
    scanner = CodeScanner(layout, rows.centroids, rotation, rows.first_rows, np.array(COUNTS))
    for cluster, one in enumerate(codes):
        scanner.load(cluster, one)
    return scanner, codes


def some_queries(rows: Rows, count: int) -> Float32:
    chosen = np.random.default_rng(7).integers(0, len(COUNTS), count)
    return around(rows.centroids[chosen], seed=8)


@EVERY_CODEC
@pytest.mark.parametrize("dimension", [16, 60])
def test_a_scan_finds_every_row_of_the_probed_clusters_once(codec: str, dimension: int) -> None:
    rows = make_rows(dimension)
    scanner, _ = make_scanner(rows, codec)
    queries = some_queries(rows, 3)
    probes = [[0, 3, 1], [2], [5, 4, 3, 2, 1, 0]]
    found, estimates = scanner.scan(queries, [np.array(one) for one in probes], 2000)
    assert found.shape == estimates.shape == (3, 2000)
    for query, probe, numbers, scores in zip(queries, probes, found, estimates, strict=True):
        kept = numbers >= 0
        wanted = rows.rows_of(probe)
        assert kept.sum() == len(wanted) and set(numbers[kept].tolist()) == wanted
        assert kept[: len(wanted)].all() and (np.diff(scores[kept]) <= 0).all()
        error = margin(codec, dimension, "margin")
        assert np.abs(scores[kept] - rows.scores(query, numbers[kept])).mean() < error


@EVERY_CODEC
@pytest.mark.parametrize("dimension", [32, 384])
def test_few_estimates_err_by_more_than_the_margins(codec: str, dimension: int) -> None:
    rows = make_rows(dimension, "float16")
    scanner, _ = make_scanner(rows, codec, "float16")
    queries = some_queries(rows, 100)
    nearest = np.argsort(-queries @ rows.centroids.T, axis=1)[:, :2]
    found, estimates = scanner.scan(queries, list(nearest), 100)
    errors = np.concatenate(
        [
            scores[numbers >= 0] - rows.scores(query, numbers[numbers >= 0])
            for query, numbers, scores in zip(queries, found, estimates, strict=True)
        ]
    )
    assert (np.abs(errors) > margin(codec, dimension, "default")).mean() < 0.002
    assert (np.abs(errors) > margin(codec, dimension, "margin")).mean() <= 0.0001
    if codec == "sq8":
        step = 2 * SQ8_REACH / math.sqrt(dimension) / 255
        assert np.std(errors) == pytest.approx(step / math.sqrt(12), rel=0.05)


@EVERY_CODEC
def test_a_cluster_that_is_dropped_is_not_found_until_it_is_loaded_again(codec: str) -> None:
    rows = make_rows(60)
    scanner, codes = make_scanner(rows, codec)
    queries, probes = some_queries(rows, 20), [np.arange(len(COUNTS))] * 20
    before = scanner.scan(queries, probes, 50)
    scanner.drop(0)
    found, _ = scanner.scan(queries, probes, 2000)
    assert set(found[found >= 0].tolist()) == rows.rows_of([1, 2, 3, 4, 5])
    scanner.load(0, codes[0])
    for one, other in zip(before, scanner.scan(queries, probes, 50), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_flat_codes_are_the_stored_rows(dtype: str) -> None:
    rows = make_rows(60, dtype)
    _, codes = make_scanner(rows, "flat", dtype)
    assert codes[4].tobytes() == rows.of(4).astype(dtype).tobytes()


def test_sq8_clips_what_is_out_of_its_range() -> None:
    rotation = np.eye(100, dtype=np.float32)
    vectors = np.stack([rotation[0], -rotation[0]])  # 1 is more than 6 / sqrt(100)
    encoder = Encoder(code_layout("sq8", 100, "float32"), rotation[:1], rotation)
    codes = np.frombuffer(encoder.encode(0, vectors), np.uint8).reshape(2, 100)
    assert codes[:, 0].tolist() == [255, 0] and set(codes[:, 1:].ravel().tolist()) == {127}


@EVERY_CODEC
def test_codes_in_another_arrangement_are_refused(codec: str) -> None:
    layout = code_layout(codec, 32, "float32")
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


@EVERY_CODEC
@pytest.mark.parametrize("mode", ["default", "margin"])
def test_a_first_scan_proposes_more_rows_than_are_asked_for(codec: str, mode: SearchMode) -> None:
    for top_k in (1, 10, 100):
        assert top_k < first_count(codec, mode, top_k) <= COUNT_MAX


def test_more_accurate_codecs_have_larger_codes_and_smaller_margins() -> None:
    bytes_a_row = [
        one.block_bytes / one.block_rows
        for one in (code_layout(codec, 384, "float32") for codec in CODECS)
    ]
    margins = [margin(codec, 384, "default") for codec in CODECS]
    assert bytes_a_row == sorted(bytes_a_row, reverse=True)
    assert margins == sorted(margins)
    assert bytes_a_row[:3] == [1536, 384, 212]


def test_a_list_of_codecs_is_read_in_any_order_and_wrong_names_are_refused() -> None:
    assert parse_codecs("rabitq2, flat,sq8,flat") == ("flat", "sq8", "rabitq2")
    for wrong in ("sq9", "", "sq8,,flat", "sq8;flat"):
        with pytest.raises(ValueError, match="flat, sq8, rabitq4, rabitq3, rabitq2, rabitq1"):
            parse_codecs(wrong)

"""Stored indexes of earlier builds are read with the same results, or refused with a reason."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from carpool.disk.centroids import probe, write_centroids
from carpool.disk.documents import DocumentWriter
from carpool.disk.extent_table import write_extents
from carpool.disk.extents import plan_extents
from carpool.disk.index import OpenIndex, open_index
from carpool.disk.segments import SegmentWriter
from carpool.errors import ConfigError
from tests.compat.make import EXPECTED_NAME, SAMPLES, VARIANTS, Expected
from tests.disk.helpers import read_one

SCORE_TOLERANCE = 1e-6


def expected_of(variant: str) -> list[Expected]:
    return msgspec.json.decode(
        (SAMPLES / variant / EXPECTED_NAME).read_bytes(), type=list[Expected]
    )


def search(index: OpenIndex, expected: Expected) -> tuple[list[int], list[float], list[int]]:
    """Clusters, scores and rows, from what lies on disk."""
    query = np.array(expected.query, dtype=np.float32)
    clusters = probe(index.centroids, query[None, :], expected.nprobe)[0].tolist()
    read = [read_one(index, cluster) for cluster in clusters]
    rows = np.concatenate([cluster.rows for cluster in read])
    scores = np.concatenate([cluster.vectors for cluster in read]) @ query
    best = np.lexsort((rows, -scores))[: len(expected.rows)]
    return clusters, scores[best].tolist(), rows[best].tolist()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_stored_index_is_read_and_finds_what_it_found(variant: str) -> None:
    index = open_index(SAMPLES / variant)
    try:
        assert index.manifest.vector_dtype == VARIANTS[variant]
        assert index.manifest.segment_count > 1
        for expected in expected_of(variant):
            clusters, scores, rows = search(index, expected)
            assert tuple(clusters) == expected.clusters
            assert tuple(rows) == expected.rows
            assert scores == pytest.approx(expected.scores, abs=SCORE_TOLERANCE)
            documents = index.documents.get(rows)
            assert [(d.doc_id, d.title, d.text) for d in documents] == list(
                zip(expected.doc_ids, expected.titles, expected.texts, strict=True)
            )
    finally:
        index.close()


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_stored_distinguishes_right_from_wrong(variant: str) -> None:
    """Rounding cannot exchange two expected scores, and every cluster is probed by a query."""
    probed = set()
    for expected in expected_of(variant):
        assert len(expected.rows) > 0
        assert all(np.diff(expected.scores) < -10 * SCORE_TOLERANCE)
        probed |= set(expected.clusters)
    assert probed == set(range(6))


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_stored_is_written_today_as_the_same_bytes(tmp_path: Path, variant: str) -> None:
    index = open_index(SAMPLES / variant)
    manifest = index.manifest
    row_counts = [extent.row_count for extent in index.extents]
    extents = plan_extents(index.layout, row_counts, segment_bytes_max=24 << 10)
    segments = SegmentWriter(
        tmp_path, layout=index.layout, build_id=manifest.build_id, extents=extents
    )
    for extent in segments.remaining:
        cluster = read_one(index, extent.cluster)
        segments.append(extent.cluster, cluster.vectors, cluster.rows)
    segments.close()
    write_extents(tmp_path, extents)
    documents = DocumentWriter(tmp_path, manifest.documents_build_id)
    for document in index.documents.get(range(manifest.row_count)):
        documents.append(document)
    documents.close()
    write_centroids(tmp_path, index.centroids)
    index.close()
    assert {path.name for path in tmp_path.iterdir()} == set(manifest.files)
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (SAMPLES / variant / path.name).read_bytes(), path.name


def test_an_index_of_format_v0_is_refused_with_the_reason_and_what_to_do() -> None:
    with pytest.raises(
        ConfigError,
        match=r"has format 'v0'; this build reads v1 and v2.*no checksums.*Rebuild the index: "
        r"carpool index build",
    ):
        open_index(SAMPLES / "v0")

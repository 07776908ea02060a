"""Stored indexes are read with the same results, and written as the same bytes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from carpool.codes.codec import CODEC
from carpool.codes.int4 import Encoder
from carpool.digest import digest_of
from carpool.disk.centroids import probe, write_centroids
from carpool.disk.document_keys import DOCUMENT_KEYS_NAME, DocumentKeys, write_document_keys
from carpool.disk.document_rows import read_document_rows, write_document_rows
from carpool.disk.documents import DocumentStore, DocumentWriter
from carpool.disk.extent_table import write_extents
from carpool.disk.extents import plan_extents
from carpool.disk.index import OpenIndex, open_index
from carpool.disk.manifest import read_manifest
from carpool.disk.rotation import read_rotation, write_rotation
from carpool.disk.segments import SegmentWriter
from tests.compat.make import BASE, EXPECTED_NAME, SAMPLES, VARIANTS, Expected
from tests.disk.helpers import read_one

SCORE_TOLERANCE = 1e-6


def expected_of(variant: str) -> list[Expected]:
    return msgspec.json.decode(
        (SAMPLES / variant / EXPECTED_NAME).read_bytes(), type=list[Expected]
    )


def search(index: OpenIndex, expected: Expected) -> tuple[list[int], list[float], list[int]]:
    """Clusters, scores and rows of the best, from what lies on disk."""
    query = np.array(expected.query, dtype=np.float32)
    clusters = probe(index.centroids, query[None, :], expected.nprobe)[0].tolist()
    read = [read_one(index, cluster) for cluster in (*clusters, *index.manifest.zero_clusters)]
    rows = np.concatenate([cluster.rows for cluster in read])
    scores = np.concatenate([cluster.vectors for cluster in read]) @ query
    best = np.lexsort((rows, -scores))[: len(expected.scores)]
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
            assert scores == pytest.approx(expected.scores, abs=SCORE_TOLERANCE)
            documents = index.documents.get(rows)
            assert [(d.doc_id, d.title, d.text) for d in documents] == list(
                zip(expected.doc_ids, expected.titles, expected.texts, strict=True)
            )
    finally:
        index.close()


def test_a_stored_base_says_what_it_is_and_which_passages_a_document_has() -> None:
    manifest = read_manifest(SAMPLES / "v2-base")
    assert (manifest.base, manifest.zero_clusters) == (BASE, (6,))
    keys = DocumentKeys.open(SAMPLES / "v2-base", manifest)
    assert keys.passages_of(digest_of(b"doc-0")) == range(2)
    assert keys.passages_of(digest_of(b"doc-7")) == range(14, 16)


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_stored_distinguishes_right_from_wrong(variant: str) -> None:
    """Rounding cannot exchange two expected scores, and every cluster is probed by a query."""
    probed = set()
    for expected in expected_of(variant):
        assert len(expected.scores) > 0
        assert all(np.diff(expected.scores) < -10 * SCORE_TOLERANCE)
        probed |= set(expected.clusters)
    assert probed == set(range(6))


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_stored_is_written_today_as_the_same_bytes(tmp_path: Path, variant: str) -> None:
    index = open_index(SAMPLES / variant)
    manifest = index.manifest
    rotation = read_rotation(index.dir, manifest)
    # Codes of other codecs are not written any more.
    layouts = [codes for codes in manifest.codes if codes.codec == CODEC]
    row_counts = [extent.row_count for extent in index.extents]
    extents = plan_extents(index.layout, row_counts, segment_bytes_max=24 << 10)
    segments = SegmentWriter(
        tmp_path,
        layout=index.layout,
        build_id=manifest.build_id,
        extents=extents,
        encoder=next((Encoder(codes, index.scan_centroids, rotation) for codes in layouts), None),
    )
    for extent in segments.remaining:
        segments.append(extent.cluster, read_one(index, extent.cluster).vectors)
    segments.close()
    write_extents(tmp_path, extents)
    write_rotation(tmp_path, rotation)
    write_document_rows(tmp_path, read_document_rows(index.dir, manifest, index.extents))
    with DocumentStore.open(index.dir, manifest) as stored:
        documents = DocumentWriter(tmp_path, manifest.documents_build_id)
        for document in stored.get(range(manifest.row_count)):
            documents.append(document)
        documents.close()
    write_centroids(tmp_path, index.centroids)
    if DOCUMENT_KEYS_NAME in manifest.files:
        keys = DocumentKeys.open(index.dir, manifest)
        keys.check()
        write_document_keys(tmp_path, keys.chunks())
    index.close()
    old = [] if layouts else [name for name in manifest.files if name.startswith("codes-")]
    assert {path.name for path in tmp_path.iterdir()} == set(manifest.files) - set(old)
    for path in tmp_path.iterdir():
        written, before = path.read_bytes(), (SAMPLES / variant / path.name).read_bytes()
        if path.name.startswith("codes-"):  # the last bit of a product depends on the processor
            assert len(written) == len(before), path.name
            same = sum(map(int.__eq__, written, before))
            assert path.suffix == ".sum" or same >= 0.98 * len(before), f"{path.name}: {same}"
        else:
            assert written == before, path.name

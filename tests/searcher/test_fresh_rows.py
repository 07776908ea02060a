"""Fresh rows beside those of an index, with and without codes, in searches of several snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from carpool.arrays import Bool, Float32, Int64
from carpool.clock import SystemClock
from carpool.codes import row_mask
from carpool.corpus.assign import assign
from carpool.corpus.passages import passages_of, size_bytes_of
from carpool.disk.document_rows import place_count
from carpool.disk.index import open_index
from carpool.disk.rotation import random_rotation
from carpool.telemetry.metrics import Metrics
from schemas.document import Corpus, DocumentVectors, IndexedPassage
from schemas.query import SearchMode
from searcher.build import open_search_plane
from searcher.executor import Search
from searcher.fresh.rows import FreshRows, FreshView
from searcher.settings import SearcherSettings
from searcher.snapshot import Snapshot
from tests.searcher.codes_rig import DIMENSION, NLIST, around, directions, make_index, questions
from tests.searcher.helpers import SmallIndex, mask_of
from tests.searcher.searching import Searching

TOP_K = 7
FRESH = 900
BUDGET_BYTES = 4 << 20


@pytest.fixture(scope="module", params=[True, False], ids=["codes", "no codes"])
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SmallIndex:
    return make_index(tmp_path_factory.mktemp("fresh"), has_codes=request.param)


@contextmanager
def running(index: SmallIndex) -> Iterator[Searching]:
    metrics, opened = Metrics(), open_index(index.dir)
    settings = SearcherSettings(budget_bytes=BUDGET_BYTES, direct_io="auto")
    here = Searching(open_search_plane(opened, settings, metrics, SystemClock()), metrics)
    yield here
    here.close()
    opened.close()


class World:
    """Fresh rows over an index, as a test knows them."""

    def __init__(self, index: SmallIndex) -> None:
        opened = open_index(index.dir)
        self.index = index
        self.first_row = place_count(opened.layout, opened.extents)
        opened.close()
        self.fresh = FreshRows(
            index.centroids,
            random_rotation(DIMENSION, 0),
            first_row=self.first_row,
            limit_bytes=1 << 20,
        )
        near = index.centroids[np.random.default_rng(4).integers(0, NLIST, FRESH)]
        vectors = around(near, seed=9)
        vectors[::5] = directions(len(vectors[::5]), DIMENSION, seed=10)  # most of them are far
        self.vectors = vectors.astype(np.float16)
        self.clusters = assign(self.vectors.astype(np.float32), index.centroids)

    def snapshot(self, count: int, seed: int) -> tuple[Snapshot, Bool, Int64]:
        """Adds rows until there are `count`, hides some, and returns what is visible of both."""
        random = np.random.default_rng(seed)
        have = len(self.fresh.passages)
        assert self.fresh.add(self.vectors[have:count], [b""] * (count - have))
        for slot in random.integers(0, count, 40).tolist():
            self.fresh.hide([range(slot, slot + 1)])
        are_visible = random.random(len(self.index.vectors)) < 0.5
        mask = mask_of(self.index, are_visible)
        view = self.fresh.view()
        places = self.fresh.rows_of(range(count)) - self.first_row
        shown = np.flatnonzero(row_mask.are_visible(view.mask, places))
        return Snapshot(Corpus(base="b"), mask, view), are_visible, shown

    def best(self, search: Search, are_visible: Bool, fresh: Int64) -> tuple[list[int], Float32]:
        """The rows that an exact search finds, and their scores."""
        index = self.index
        own = np.flatnonzero(np.isin(index.assigned, search.clusters) & are_visible)
        near = fresh[np.isin(self.clusters[fresh], [*search.clusters, NLIST])]
        rows = [*index.places(own), *(self.fresh.rows_of(range(FRESH))[near]).tolist()]
        vectors = np.concatenate([index.vectors[own], self.vectors[near].astype(np.float32)])
        scores = vectors @ search.vector
        order = np.lexsort((rows, -scores))[: search.top_k]
        return [rows[at] for at in order], scores[order]


@pytest.mark.parametrize("mode", ["default", "exact"])
def test_searches_find_the_best_of_what_they_see(index: SmallIndex, mode: SearchMode) -> None:
    world = World(index)
    searches = [replace(one, mode=mode, top_k=TOP_K) for one in questions(index, 60, 4)]
    seen = [world.snapshot(count, seed) for seed, count in enumerate((300, 600, FRESH))]
    asked = [replace(one, snapshot=seen[one.key % 3][0]) for one in searches]
    with running(index) as here:
        found = here.search(asked)
    missed = found_fresh = 0
    for search in asked:
        result, (_, are_visible, fresh) = found[search.key], seen[search.key % 3]
        assert result is not None and not result.errors
        rows, scores = world.best(search, are_visible, fresh)
        missed += len(set(rows) - set(result.best.rows.tolist()))
        assert len(result.best.rows) == len(rows)
        if result.mode == "exact":
            assert result.best.rows.tolist() == rows
            np.testing.assert_allclose(result.best.scores, scores, rtol=0, atol=1e-5)
        of_fresh = result.best.rows >= world.first_row
        found_fresh += int(of_fresh.sum())
        assert set(result.best.clusters[~of_fresh].tolist()) <= set(search.clusters)
    assert missed <= 3, f"{missed} of 420 ids"
    assert found_fresh > 20


@pytest.mark.parametrize("metadata", [None, {"url": "u" * 1_900}])
@pytest.mark.parametrize("text", ["x", "漢字" * 300])
def test_a_base_is_saved_by_about_the_bytes_that_rows_take(
    index: SmallIndex, text: str, metadata: dict[str, str] | None
) -> None:
    fresh, key, count = World(index).fresh, b'["owner","a/long/path.md"]', 64
    vectors = np.repeat(index.centroids[:1], count, axis=0).astype(np.float16)
    record = DocumentVectors(
        offset=0,
        title="Title",
        metadata=metadata,
        passages=(IndexedPassage(text=text),) * count,
        vectors=vectors.tobytes(),
    )
    assert fresh.add(vectors, [msgspec.msgpack.encode(each) for each in passages_of(key, record)])
    assert size_bytes_of(key, record) == pytest.approx(fresh.size_bytes, rel=0.2)


def test_a_view_stays_as_it_was_when_rows_are_rewritten(index: SmallIndex) -> None:
    world = World(index)
    snapshot, _, fresh = world.snapshot(600, 1)
    view = snapshot.fresh
    assert isinstance(view, FreshView)
    query = directions(1, DIMENSION, seed=2)[0]
    before = view.best(query, range(NLIST), 20)
    kept = [range(slot, slot + 1) for slot in fresh.tolist()]
    new = world.fresh.rewritten(kept)
    assert new.size_bytes < world.fresh.size_bytes
    after = new.view().best(query, range(NLIST), 20)
    np.testing.assert_array_equal(before.scores, after.scores)
    again = view.best(query, range(NLIST), 20)
    np.testing.assert_array_equal(before.rows, again.rows)

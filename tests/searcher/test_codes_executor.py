"""Codes in memory and few rows from the disk: promises kept, faults of the disk survived."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from carpool.errors import CorruptionError, RetryableError
from searcher.executor import SearchGroup
from tests.rig.faulty_disk import Fault
from tests.searcher.codes_rig import exact, make_index, missed, questions, running, scores_of
from tests.searcher.faults import FAIL, SLOW, no_fault
from tests.searcher.helpers import SmallIndex, mask_of, some_visible


@pytest.fixture(scope="module")
def index(codes_index: SmallIndex) -> SmallIndex:
    return codes_index


@pytest.mark.parametrize("paged_share", [None, 0.3])
def test_a_promise_is_kept_and_scores_are_exact(
    index: SmallIndex, paged_share: float | None
) -> None:
    searches = questions(index, 300, 5)
    with running(index, paged_share=paged_share) as here:
        found = here.search(searches)
    assert missed(index, searches, found) <= 4, "of 2,100 ids"
    for search in searches:
        result = found[search.key]
        assert result is not None and not result.skipped
        np.testing.assert_allclose(
            result.best.scores, scores_of(index, search, result), rtol=0, atol=1e-6
        )
        assert result.best.clusters.tolist() == index.clusters_of_rows(result.best.rows)


@pytest.mark.parametrize("paged_share", [None, 0.3])
def test_rows_that_are_hidden_take_no_place_in_a_result(
    index: SmallIndex, paged_share: float | None
) -> None:
    searches, are_visible = questions(index, 100, 5), some_visible(index)
    with running(index, paged_share=paged_share) as here:
        here.hide_all_but(mask_of(index, are_visible))
        found = here.search(searches)
    assert missed(index, searches, found, are_visible) <= 2, "of 700 ids"


def test_a_page_is_read_once_for_all_queries_of_a_window(index: SmallIndex) -> None:
    search = questions(index, 1, 5)[0]
    searches = [replace(search, key=key) for key in range(20)]
    with running(index, slot_pages=512) as here:
        found = here.search(searches)
        offsets = [(file, offset) for file, offset, _ in here.pages.seen]
        read = here.count("bytes_read_total", purpose="demand")
        assert read == sum(size for _, _, size in here.pages.seen)
    # The queries are scanned in several calls, so at most once a call.
    assert len(offsets) <= 5 * len(set(offsets))
    assert sum(result.bytes_read for result in found.values() if result) == read


def test_more_results_than_rows_and_clusters_without_rows(tmp_path: Path) -> None:
    index = make_index(tmp_path / "few", rows=40)
    searches = [replace(search, top_k=100) for search in questions(index, 20, 12)]
    with running(index, paged_share=0.3) as here:
        found = here.search(searches)
    for search in searches:
        result = found[search.key]
        assert result is not None and not result.errors
        assert result.best.rows.tolist() == exact(index, search)


def test_a_dropped_query_is_not_finished_a_late_one_ends_and_others_are_found(
    index: SmallIndex,
) -> None:
    searches = questions(index, 60, 5)
    late = [replace(search, key=search.key + 100, deadline_us=1) for search in searches[:5]]
    with running(index, paged_share=0.3) as here:
        here.pages.fault = here.code_pages.fault = lambda read: SLOW
        here.executor.join(SearchGroup(searches=tuple(searches)))
        here.executor.drop([search.key for search in searches[30:]])
        assert missed(index, searches[:30], here.take(30)) <= 1
        assert set(here.search(late).values()) == {None}


@pytest.mark.parametrize(
    ("fault", "kind"),
    [(FAIL, RetryableError), ("short", CorruptionError), ("flip", CorruptionError)],
)
def test_rows_that_cannot_be_read_are_named_by_their_cluster(
    index: SmallIndex, fault: Fault, kind: type[Exception]
) -> None:
    searches = questions(index, 60, 5)
    bad = index.extents[3]
    end = bad.offset_bytes + bad.size_bytes
    with running(index) as here:
        here.pages.fault = lambda read: (
            fault
            if read.file == bad.segment and bad.offset_bytes <= read.offset_bytes < end
            else None
        )
        found = here.search(searches)
        here.pages.fault = no_fault
        again = here.search([replace(search, key=search.key + 100) for search in searches])
    named = 0
    for search in searches:
        result = found[search.key]
        assert result is not None
        assert set(result.skipped) <= {3, 4, 5}, "a read may go on into the next cluster"
        named += len(result.skipped)
        assert all(isinstance(error, kind) for error in result.errors)
        rest = set(exact(index, search, frozenset(result.skipped)))
        # Rows of other clusters are found as far as they were among the proposed ones.
        assert (
            len(rest & set(result.best.rows.tolist())) >= len(set(exact(index, search)) & rest) - 1
        )
    assert named > 2
    assert all(result is not None and not result.skipped for result in again.values())


def test_damaged_codes_of_a_cluster_are_named_and_the_others_are_searched(tmp_path: Path) -> None:
    index = make_index(tmp_path / "damaged")
    path = index.dir / "codes-int4-000000.bin"
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    searches = questions(index, 40, 12)
    with running(index) as here:
        found = here.search(searches)
    for search in searches:
        result = found[search.key]
        assert result is not None and len(result.skipped) == 1
        assert "codes-int4" in str(result.errors[0])
        rest = exact(index, search, frozenset(result.skipped))
        assert len(set(rest) & set(result.best.rows.tolist())) >= len(rest) - 1

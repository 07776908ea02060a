"""Any log, compacted at any time, restarts, bases saved and swapped: a search finds the truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from carpool.arrays import Float32, Int64
from carpool.codes.row_mask import are_visible, new_mask
from carpool.corpus.bases import Bases
from carpool.corpus.fold import Fold, Revision, Step
from schemas.document import Base
from searcher.codes.executor import CodesExecutor
from searcher.codes.query import CodesQuery
from searcher.fresh import rows as fresh_rows
from searcher.fresh.rows import FreshRows, FreshView
from searcher.scoring.top_k import TopK
from tests.corpus.world import Faults, World
from tests.seed import SEED

EVENTS = 60
LOGS_MAX = 6_000
RARE = (873, 952, 4_835)
"""Seeds of logs that find the faults which few logs find; they are tried first."""
"""Logs in which a fault must be found."""

Patch = Callable[[pytest.MonkeyPatch], object]


def test_a_search_finds_what_was_published_up_to_the_position_that_it_states() -> None:
    for number in range(200):
        World(1_000_000 * SEED + number).run(EVENTS)


@pytest.mark.long
@pytest.mark.parametrize("part", range(20))
def test_it_does_so_in_100_000_logs(part: int) -> None:
    for number in range(5_000):
        World(10_000_000 * SEED + 5_000 * part + number).run(EVENTS)


def the_state_changes_within_a_search(patch: pytest.MonkeyPatch) -> None:
    def view(rows: FreshRows) -> FreshView:
        return FreshView(rows, rows.codes.view(), rows._mask)

    patch.setattr(FreshRows, "view", view)


def rows_are_hidden_after_they_were_ranked(patch: pytest.MonkeyPatch) -> None:
    scan, best = FreshView.scan, CodesExecutor._best

    def scan_all(view: FreshView, *args: Any) -> None:
        scan(replace(view, mask=new_mask(view.blocks.end, is_visible=True)), *args)

    def best_that_are_visible(executor: CodesExecutor, query: CodesQuery) -> TopK:
        found, fresh = best(executor, query), query.search.fresh
        if fresh is None:
            return found
        own = found.rows >= fresh.rows.first_row
        shown = np.where(own, True, False)
        places = found.rows - fresh.rows.first_row
        shown[own] = are_visible(fresh.mask, places[own])
        kept = shown | ~own
        return TopK(found.scores[kept], found.rows[kept], found.clusters[kept])

    patch.setattr(FreshView, "scan", scan_all)
    patch.setattr(CodesExecutor, "_best", best_that_are_visible)


def the_loser_of_two_bases_counts(patch: pytest.MonkeyPatch) -> None:
    def announced(bases: Bases, base: Base) -> bool:
        bases._line = [*bases._line[-1:], base]
        return True

    patch.setattr(Bases, "announced", announced)


def nobody_is_behind(patch: pytest.MonkeyPatch) -> None:
    step = Fold.step

    def step_as_if_whole(fold: Fold, revision: Revision) -> Step:
        return step(fold, revision._replace(is_behind=False, is_old=False))

    patch.setattr(Fold, "step", step_as_if_whole)


def far_rows_are_in_the_nearest_cluster(patch: pytest.MonkeyPatch) -> None:
    def assign(vectors: Float32, centroids: Float32) -> Int64:
        nearest: Int64 = (vectors @ centroids.T).argmax(axis=1)
        return nearest

    patch.setattr(fresh_rows, "assign", assign)


def of_the_world(**faults: Any) -> Patch:
    return lambda _: Faults(**faults)


FAULTS: Sequence[tuple[str, Patch]] = (
    (
        "an older revision that was tried again comes after the newer one",
        of_the_world(repeats=True),
    ),
    ("a fold begins before the position of its base", of_the_world(begins_early=3)),
    ("rows are hidden after they were ranked", rows_are_hidden_after_they_were_ranked),
    ("a refusal is lost, and the position stands still", of_the_world(loses_refusals=True)),
    ("the state changes within a search", the_state_changes_within_a_search),
    ("the loser of two saved bases counts", the_loser_of_two_bases_counts),
    ("a compaction across a reader that is behind", nobody_is_behind),
    ("a row far from all centroids", far_rows_are_in_the_nearest_cluster),
)


@pytest.mark.parametrize(("fault", "patch"), FAULTS, ids=[fault for fault, _ in FAULTS])
def test_a_fault_is_found(fault: str, patch: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    found = patch(monkeypatch)
    faults = found if isinstance(found, Faults) else Faults()
    for seed in (*RARE, *range(SEED, SEED + LOGS_MAX)):
        try:
            World(seed, faults).run(EVENTS)
        except AssertionError:
            return
    pytest.fail(f"not found in {LOGS_MAX} logs: {fault}")

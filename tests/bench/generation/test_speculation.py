"""Searches whose results grow, and warm-ups on virtual time, counted by hand."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest

from bench.data.trace import Clustered
from bench.generation.progressive import (
    Found,
    ProgressiveSearch,
    ScanOrder,
    SearchedCorpus,
    by_history,
)
from bench.generation.speculation import (
    Oracle,
    PipelineShape,
    SpeculationFigures,
    SpeculationSimulation,
)
from bench.generation.speculation_command import PolicyFigures, SpeculationResult, promises_of
from bench.papers.ragcache.speculative_pipelining import RagCache
from bench.simulator.llm_steps import EngineCosts, EngineRequest, StepEngine, correction
from generator.plan.speculation.none import NoSpeculation
from generator.plan.speculation.protocol import SpeculationPolicy

COSTS = EngineCosts(step_us=10, prefill_us=1, decode_us=0, step_tokens=1_000, block_tokens=10)
SHAPE = PipelineShape(search_us=1_000, clients=1, answer_tokens=2, tail_tokens=5)


@pytest.mark.parametrize("order", get_args(ScanOrder))
@pytest.mark.parametrize("in_progress", [1, 3])
def test_every_order_ends_with_the_best_of_all_probed_rows(
    order: ScanOrder, in_progress: int
) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(300, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    corpus, questions = vectors[:280], vectors[280:]
    clustered = Clustered(corpus[:6], np.argmax(corpus @ corpus[:6].T, axis=1))
    searched = SearchedCorpus(corpus, clustered, questions, nprobe=6, top_k=3)
    found = searched.search(order, in_progress=in_progress)
    for question, search in zip(questions, found.searches, strict=True):
        best = np.argsort(-(corpus @ question), kind="stable")[:3]
        assert search.found[-1].rows == tuple(best.tolist())
        assert search.found[-1].bytes_share == pytest.approx(1)
        assert 0 < search.final_at <= 1 or order == "history"


def test_clusters_where_an_earlier_question_found_something_come_first() -> None:
    assert by_history([4, 3, 2, 1], found={2}, searched={1, 2}) == [2, 1, 4, 3]


def growing(*rows: tuple[int, ...]) -> ProgressiveSearch:
    """A search of clusters of equal size that finds `rows` one after the other."""
    return ProgressiveSearch(
        question=0,
        found=tuple(
            Found(
                rows=each,
                scores=tuple(1.0 for _ in each),
                clusters_done=done,
                bytes_share=done / len(rows),
            )
            for done, each in enumerate(rows, 1)
        ),
    )


def figures(policy: SpeculationPolicy, *rows: tuple[int, ...]) -> SpeculationFigures:
    """Of one question; a passage has 100 tokens, so its prompt has 205 with two passages."""
    search = growing(*rows)
    return SpeculationSimulation([search], [100] * 5, policy, SHAPE, COSTS).run()


def test_without_warm_ups_the_whole_prompt_is_computed_after_the_search() -> None:
    found = figures(NoSpeculation(), (0, 1), (0, 2))
    assert (found.hidden_share, found.waste, found.ttft_ms) == (0, 0, 0.215)


def test_the_oracle_warms_only_what_is_final() -> None:
    found = figures(Oracle({"0": ("0", "2")}), (0, 1), (0, 1), (0, 1), (0, 2))
    assert found.hidden_share == pytest.approx(100 / 205)
    assert (found.waste, found.ttft_ms) == (0, 0.115)


def test_what_a_wrong_draft_computed_is_wasted_behind_the_right_passages() -> None:
    found = figures(RagCache(), (0, 1), (0, 2), (0, 2), (0, 2))
    assert found.hidden_share == pytest.approx(200 / 205)
    assert found.waste == pytest.approx(100 / 205)
    assert (found.ttft_ms, found.warm_ups_a_question) == (0.015, 2)


def test_a_step_in_progress_cannot_be_cut() -> None:
    """The search ends after 1,000 us; the wrong warm-up begins at 950 us and takes 210 us."""
    rows = ((0, 1),) * 18 + ((3, 1), (0, 2))
    found = figures(RagCache(), *rows)
    assert found.ttft_ms == pytest.approx((950 + 210 - 1_000 + 10 + 105) / 1_000)


def test_an_error_that_is_found_late_is_removed_after_the_prefill() -> None:
    """AquaPipe, section 4.3, its two cases."""
    early = correction(behind_tokens=50, left_tokens=140, us_a_token=1.0, removal_us=10.0)
    late = correction(behind_tokens=300, left_tokens=20, us_a_token=1.0, removal_us=10.0)
    assert early == ("re-prefill", 50.0)
    assert late == ("remove-after-prefill", 30.0)


@pytest.mark.parametrize(("removal_us", "computed"), [(None, 105), (99, 5), (101, 105)])
def test_a_wrong_passage_is_removed_where_that_is_cheaper(
    removal_us: int | None, computed: int
) -> None:
    costs = EngineCosts(
        step_us=10, prefill_us=1, decode_us=0, block_tokens=10, removal_us=removal_us
    )
    server = StepEngine(costs)
    server.add(EngineRequest("q", ("a", "x", "b"), (100, 100, 100), length=300))
    server.begin_step(0)
    server.end_step()
    server.add(EngineRequest("q", ("a", "b"), (100, 100), length=205, answer_tokens=1))
    step = server.begin_step(0)
    assert step is not None
    assert step.parts[0][1] == computed
    assert step.end_us == 10 + computed + (99 if computed == 5 else 0)


def kept(*, waste: float = 0.2, warm_ups: float = 1.0, **fields: Any) -> list[bool]:
    """The promises of one row of figures, of searches of a second by `likely` if nothing is said.

    In order: hidden and waste of 1 s, hidden and waste of 0.5 s, no warm-up at 6 ms.
    """
    figures = SpeculationFigures(
        hidden_share=0.5, waste=waste, ttft_ms=1, ttft_ms_mean=1, warm_ups_a_question=warm_ups
    )
    given: dict[str, Any] = {
        "nlist": 100,
        "order": "nearest",
        "at_once": 1,
        "search_s": 1.0,
        "policy": "likely",
        "figures": figures,
        "of_oracle": 0.9,
    }
    row = PolicyFigures(**given | fields)
    result = SpeculationResult(nprobe={}, passage_tokens=1.0, orders=(), policies=(row,))
    return list(promises_of(result).values())


def test_each_promise_is_broken_by_the_row_that_is_promised() -> None:
    assert kept() == [True] * 5
    assert kept(of_oracle=0.89) == [False, True, True, True, True]
    assert kept(waste=0.26) == [True, False, True, True, True]
    assert kept(search_s=0.5, of_oracle=0.7) == [True] * 5
    assert kept(search_s=0.5, of_oracle=0.69, waste=0.26) == [True, True, False, False, True]
    assert kept(policy="stable", of_oracle=0.1, waste=0.9) == [True] * 5
    assert kept(policy="auto", search_s=0.006) == [True, True, True, True, False]
    assert kept(policy="auto", search_s=0.006, warm_ups=0.0) == [True] * 5

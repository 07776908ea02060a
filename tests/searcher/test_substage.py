"""How long a sub-stage is: HedraRAG's formula with the sign that makes sense, from what was
measured; and alone, longer.
"""

from __future__ import annotations

import math

import pytest

from searcher.plan.substage import LONE_US, TOGETHER_US, SubstageBudget


def gain_us(mb_us: float, beta_us: float, retrieval_us: float) -> float:
    """Eq. 1 of HedraRAG with a minus sign: mean wait saved, less the overhead of the sub-stages."""
    return (retrieval_us - mb_us) / 2 - retrieval_us / mb_us * beta_us


def test_no_other_length_gains_more_by_equation_1() -> None:
    budget = SubstageBudget(beta_us=400, retrieval_us=30_000)
    best = gain_us(budget.budget_us, 400, 30_000)
    assert all(gain_us(mb_us, 400, 30_000) <= best + 1 for mb_us in range(100, 30_000, 100))


def test_what_is_measured_moves_the_length() -> None:
    budget = SubstageBudget(beta_us=400, retrieval_us=30_000)
    for _ in range(200):
        budget.scheduled(100)
        budget.retrieved(8_000)
    assert budget.budget_us == pytest.approx(math.sqrt(2 * 100 * 8_000), rel=0.01)


def test_a_query_alone_is_not_interrupted_for_others_that_are_not_there() -> None:
    budget = SubstageBudget(beta_us=400, retrieval_us=30_000)
    assert budget.budget_us_for(2) == budget.budget_us_for(100) == budget.budget_us < LONE_US
    assert budget.budget_us_for(1) == LONE_US
    long = SubstageBudget(beta_us=10_000, retrieval_us=1_000_000)
    assert long.budget_us_for(1) == long.budget_us > LONE_US


def test_short_retrievals_are_not_cut_into_pieces_that_cost_as_much_as_they() -> None:
    budget = SubstageBudget(beta_us=100, retrieval_us=3_000)
    assert budget.budget_us < budget.budget_us_for(2) == TOGETHER_US

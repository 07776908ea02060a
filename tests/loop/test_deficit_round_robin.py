"""Deficit round robin: work-conserving, shares by weight, no starvation."""

from __future__ import annotations

from collections import Counter, deque

from hypothesis import given
from hypothesis import strategies as st

from carpool.loop.priority.deficit_round_robin import DeficitRoundRobin

FLOWS = ("a", "b", "c")


def served(turns: DeficitRoundRobin, queues: dict[str, deque[int]], count: int) -> list[str]:
    """Serves up to `count` items and returns their flows."""
    order = []
    for flow in queues:
        turns.join(flow)
    for _ in range(count):
        flow = turns.next(lambda flow: queues[flow][0])
        if flow is None:
            break
        queues[flow].popleft()
        if not queues[flow]:
            turns.leave(flow)
        order.append(flow)
        turns.check_integrity()
    return order


def test_a_new_flow_goes_last_without_savings_and_a_blocked_flow_loses_its_turn() -> None:
    turns = DeficitRoundRobin(quantum=1, weight_of=lambda _: 1)
    assert served(turns, {"a": deque([1])}, 1) == ["a"]
    for flow in ("b", "a"):
        turns.join(flow)
    assert turns.next(lambda _: 1) == "b"
    assert turns.next(lambda flow: None if flow == "a" else 1) == "b"
    assert turns.next(lambda _: None) is None
    assert turns.next(lambda _: 1) == "a"


costs = st.lists(st.integers(1, 9), max_size=40)
weights = st.fixed_dictionaries({flow: st.integers(1, 5) for flow in FLOWS})


@given(st.fixed_dictionaries(dict.fromkeys(FLOWS, costs)), weights, st.integers(1, 12))
def test_all_items_are_served(
    work: dict[str, list[int]], weight: dict[str, int], quantum: int
) -> None:
    turns = DeficitRoundRobin(quantum=quantum, weight_of=weight.__getitem__)
    queues = {flow: deque(items) for flow, items in work.items() if items}
    order = served(turns, queues, 10_000)
    assert Counter(order) == Counter({flow: len(items) for flow, items in work.items()})
    assert len(turns) == 0


@given(
    st.fixed_dictionaries(
        {flow: st.lists(st.integers(1, 9), min_size=25, max_size=25) for flow in FLOWS}
    ),
    weights,
)
def test_shares_follow_weights_while_all_have_work(
    work: dict[str, list[int]], weight: dict[str, int]
) -> None:
    quantum, cost_max = 4, 9
    turns = DeficitRoundRobin(quantum=quantum, weight_of=weight.__getitem__)
    queues = {flow: deque(items) for flow, items in work.items()}
    spent: Counter[str] = Counter()
    for flow in queues:
        turns.join(flow)
    while all(len(queue) > 1 for queue in queues.values()):
        flow = turns.next(lambda flow: queues[flow][0])
        assert flow is not None
        spent[flow] += queues[flow].popleft()
        for one in FLOWS:
            for other in FLOWS:
                difference = spent[one] / weight[one] - spent[other] / weight[other]
                assert difference <= quantum + cost_max / weight[one] + cost_max / weight[other]


@given(weights, st.integers(1, 9), st.integers(0, 30), st.integers(1, 12))
def test_no_flow_waits_longer_than_the_bound(
    weight: dict[str, int], cost: int, late: int, quantum: int
) -> None:
    turns = DeficitRoundRobin(quantum=quantum, weight_of=weight.__getitem__)
    for flow in ("a", "b"):
        turns.join(flow)
    for _ in range(late):
        turns.next(lambda _: 9)
    turns.join("c")
    spent: Counter[str] = Counter()
    while (flow := turns.next(lambda flow: cost if flow == "c" else 9)) != "c":
        assert flow is not None
        spent[flow] += 9
    rounds = -(-cost // (quantum * weight["c"]))
    for flow in ("a", "b"):
        assert spent[flow] <= rounds * quantum * weight[flow] + 9

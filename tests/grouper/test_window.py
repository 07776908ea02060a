"""When windows close, which queries they contain, and the weights of tenants."""

from __future__ import annotations

from collections import deque
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouper.plan.tenants import parse_weights
from grouper.plan.window import Wait, Window, WindowPlanner
from grouper.settings import GrouperSettings


def planner(*, least: int = 2, most: int = 4, window_us: int = 100) -> WindowPlanner:
    return WindowPlanner(queries_min=least, queries_max=most, window_us_max=window_us)


def filled(count: int, *, at_us: int = 0, **bounds: int) -> WindowPlanner:
    made = planner(**bounds)
    for query_id in range(count):
        made.add(query_id, 10, at_us)
    return made


def step(
    made: WindowPlanner,
    now_us: int,
    waiting: int,
    busy: bool,
    ahead: bool = False,
    due_us: int = 0,
) -> Window | Wait:
    """Closes a window if one is due."""
    wait = made.wait(now_us, waiting, busy, ahead, due_us)
    return wait if wait is not None else made.close(now_us)


def test_before_a_commit_a_window_stays_open_until_just_before_it_unless_it_is_full() -> None:
    made = filled(3, at_us=50)
    assert step(made, 60, waiting=0, busy=False, due_us=90) == Wait(until_us=90)
    window = step(made, 90, waiting=0, busy=False, due_us=90)
    assert isinstance(window, Window) and window.query_ids == (0, 1, 2)
    assert isinstance(step(filled(4, at_us=3), 3, waiting=0, busy=False, due_us=90), Window)


def test_a_window_waits_for_the_later_of_backlog_and_commit() -> None:
    assert step(filled(3, at_us=50), 60, waiting=5, busy=False, due_us=90) == Wait(until_us=150)
    assert step(filled(3, at_us=50), 60, waiting=5, busy=False, due_us=400) == Wait(until_us=400)


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 9), st.booleans(), st.sampled_from([0, 5])), max_size=40
    ),
    least=st.integers(1, 4),
    spare=st.integers(0, 4),
)
def test_reading_ahead_changes_no_window(
    steps: list[tuple[int, bool, int]], least: int, spare: int
) -> None:
    """With the same arrivals and departures, windows closed ahead have the same queries."""
    most = least + spare
    plain, reading = planner(least=least, most=most), planner(least=least, most=most)
    in_hand: deque[tuple[int, ...]] = (
        deque()
    )  # one at a time: closed when the one before it has left
    held: deque[tuple[int, ...]] = deque()  # the one that leaves, and full ones ahead of it
    left: list[tuple[int, ...]] = []
    read: list[tuple[int, ...]] = []
    next_id = 0
    for arrivals, leaves, waiting in steps:
        for _ in range(arrivals):
            plain.add(next_id, 1, next_id)
            reading.add(next_id, 1, next_id)
            next_id += 1
        if leaves and held:
            left.append(in_hand.popleft())
            read.append(held.popleft())
        for made, closed in ((plain, in_hand), (reading, held)):
            window = step(made, next_id, waiting, busy=bool(closed))
            if isinstance(window, Window):
                closed.append(window.query_ids)
        while held and isinstance(
            window := step(reading, next_id, waiting, busy=False, ahead=True), Window
        ):
            held.append(window.query_ids)
        assert [*read, *held][: len(left) + len(in_hand)] == [*left, *in_hand]
    assert read == left


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 6)),
        st.tuples(st.just("pass"), st.integers(0, 300)),
        st.tuples(st.just("drop"), st.integers(0, 20)),
        st.tuples(st.just("step"), st.sampled_from([(0, False), (0, True), (5, False), (5, True)])),
    ),
    max_size=60,
)


@given(
    events=EVENTS, least=st.integers(1, 4), spare=st.integers(0, 4), window_us=st.integers(0, 200)
)
def test_windows_close_by_the_rules_in_any_order_of_events(
    events: list[tuple[str, int | tuple[int, bool]]], least: int, spare: int, window_us: int
) -> None:
    """Against the dumb version: a list of (id, when), and the rules written out."""
    most = least + spare
    made = planner(least=least, most=most, window_us=window_us)
    gathered: list[tuple[int, int]] = []
    now_us = next_id = windows = 0
    for kind, value in events:
        if kind == "add":
            assert isinstance(value, int)
            for _ in range(value):
                made.add(next_id, 3, now_us)
                gathered.append((next_id, now_us))
                next_id += 1
        elif kind == "pass":
            assert isinstance(value, int)
            now_us += value
        elif kind == "drop":
            made.drop(frozenset({value}))  # type: ignore[arg-type]
            gathered = [entry for entry in gathered if entry[0] != value]
        else:
            assert isinstance(value, tuple)
            waiting, busy = value
            decision = step(made, now_us, waiting=waiting, busy=busy)
            due_us = (
                gathered[0][1] + window_us * (4 if len(gathered) < least else 1) if gathered else 0
            )
            if busy or not gathered:
                assert decision == Wait(until_us=None)
            elif waiting == 0 or len(gathered) >= most or now_us >= due_us:
                leaving, gathered = gathered[:most], gathered[most:]
                assert decision == Window(
                    window_id=windows,
                    query_ids=tuple(query_id for query_id, _ in leaving),
                    opened_us=leaving[0][1],
                    closed_us=now_us,
                )
                windows += 1
            else:
                assert decision == Wait(until_us=due_us)
        made.check_integrity()
        assert made.queries == len(gathered)
        assert made.size_bytes == 3 * len(gathered)


def with_tenants(tenants: str, most: int, **weights: int) -> WindowPlanner:
    """A planner with one query for each letter, of the tenant with that name."""
    made = WindowPlanner(
        queries_min=1,
        queries_max=most,
        window_us_max=100,
        weight_of=lambda tenant: weights.get(tenant, 1),
    )
    for query_id, tenant in enumerate(tenants):
        made.add(query_id, 10, 0, tenant)
    return made


def closed(made: WindowPlanner) -> tuple[int, ...]:
    window = step(made, 0, waiting=0, busy=False)
    assert isinstance(window, Window)
    made.check_integrity()
    return window.query_ids


def test_tenants_take_turns_by_weight_and_leave_in_order_of_arrival() -> None:
    made = with_tenants("aaaaaaaabbbbbbbb", 4, a=3)
    assert closed(made) == (0, 1, 2, 8)
    assert closed(made) == (3, 4, 5, 9)


@given(
    st.text("abc", min_size=1, max_size=60),
    st.fixed_dictionaries({tenant: st.integers(1, 4) for tenant in "abc"}),
    st.integers(1, 8),
)
def test_the_k_th_query_of_a_tenant_waits_for_at_most_k_turns_of_the_others(
    tenants: str, weights: dict[str, int], most: int
) -> None:
    made = with_tenants(tenants, most, **weights)
    order = []
    while made.queries:
        window = step(made, 1_000, waiting=0, busy=False)
        assert isinstance(window, Window)
        assert len(window.query_ids) == min(most, len(tenants) - len(order))
        order += window.query_ids
        made.check_integrity()
    assert sorted(order) == list(range(len(tenants)))
    for tenant in set(tenants):
        own = [query_id for query_id in order if tenants[query_id] == tenant]
        assert own == sorted(own), "of one tenant, who came first leaves first"
        for k, query_id in enumerate(own, start=1):
            before = order[: order.index(query_id)]
            for other in set(tenants) - {tenant}:
                overtook = sum(tenants[each] == other for each in before)
                # And what fits into the same window leaves with it, in order of arrival.
                assert overtook <= k * weights[other] + most


@mock.patch("grouper.plan.window.STEP_WINDOWS", 2)
@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 4), st.booleans()), min_size=1, max_size=80
    ),
    st.integers(1, 5),
)
def test_steps_change_no_turn_of_a_tenant_and_starve_no_question(
    arriving: list[tuple[str, int, bool]], most: int
) -> None:
    """Against windows without steps: the same tenants, and of one tenant the rule, dumbly.

    A step counts as much as waiting for two windows.
    """
    made, plain = planner(least=1, most=most), planner(least=1, most=most)
    gathered: dict[int, tuple[str, int, int]] = {}  # tenant, steps done, windows closed before it
    windows = 0

    def close() -> None:
        nonlocal windows
        left, expected = closed(made), closed(plain)
        assert left == tuple(sorted(left)), "in order of arrival"
        assert sorted(arriving[id][0] for id in left) == sorted(arriving[id][0] for id in expected)
        for tenant in "ab":
            own = [id for id in gathered if gathered[id][0] == tenant]
            own.sort(key=lambda id: -gathered[id][1] * 2 - (windows - gathered[id][2]))
            ours = [id for id in left if arriving[id][0] == tenant]
            assert sorted(own[: len(ours)]) == ours
        for id in left:
            del gathered[id]
        windows += 1

    for id, (tenant, steps_done, closes) in enumerate(arriving):
        made.add(id, 1, 0, tenant, steps_done)
        plain.add(id, 1, 0, tenant)
        gathered[id] = (tenant, steps_done, windows)
        if closes:
            close()
    while gathered:
        close()
    assert made.queries == plain.queries == 0


# ---- relations between the settings of the grouper are checked together


def test_weights_of_tenants_are_read_and_what_is_none_is_refused_by_name() -> None:
    assert parse_weights(" acme=4, free = 1,,a=b=2 ") == {"acme": 4, "free": 1, "a=b": 2}
    assert parse_weights("") == {}
    for weight in ("", "=", "=0", "=-1", "=1.5", "=1001", "=²"):
        with pytest.raises(ValueError, match="is no TENANT=WEIGHT"):
            parse_weights(f"acme{weight}")
    (problem,) = GrouperSettings(tenant_weights="=3").check()
    assert problem.startswith("tenant_weights: ")

"""Lag in seconds, and stalls: records wait while no partition moves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from carpool.kafka.records import TopicPartition
from carpool.loop.stall_detector import StallDetector
from tests.loop.support import Bench, HandStage, turn

S = 1_000_000
A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def progress(now_us: int = 0) -> StallDetector:
    machine = StallDetector(stalled_after_us=30 * S, now_us=now_us)
    machine.assigned([A, B], now_us)
    return machine


def test_lag_is_measured_from_the_last_record_taken_in_or_from_an_empty_partition() -> None:
    machine = progress(1_000 * S)
    machine.took(A, 990 * S, 1_001 * S)
    machine.took(B, 998 * S, 1_001 * S)
    machine.waits({A: 5, B: 5}, 1_002 * S)
    assert machine.lag_us(1_002 * S) == 12 * S
    machine.waits({A: 0, B: 5}, 1_003 * S)
    assert machine.lag_us(1_003 * S) == 5 * S
    machine.waits({A: 3, B: 0}, 1_007 * S)
    assert machine.lag_us(1_007 * S) == 4 * S, "younger than the empty partition"


def test_records_that_wait_while_nothing_moves_are_named() -> None:
    machine = progress()
    machine.waits({A: 10, B: 130}, 29 * S)
    assert machine.stalled(29 * S) is None
    assert machine.stalled(42 * S) == (
        "t[1] has 130 records waiting (10 more in other partitions), and nothing was taken in or "
        "finished for 42 s"
    )


def test_a_revoked_partition_neither_waits_nor_stalls() -> None:
    machine = progress()
    machine.waits({A: 10, B: 0}, 1 * S)
    machine.revoked([A])
    machine.waits({A: 10}, 2 * S)
    assert machine.lag_us(100 * S) == 0
    assert machine.stalled(100 * S) is None
    machine.assigned([A], 200 * S)
    machine.waits({A: 10}, 229 * S)
    assert machine.stalled(229 * S) is None, "the wait begins with the assignment"


def test_a_loop_is_not_ready_while_it_stalls() -> None:
    bench, stage = Bench(partitions=1), HandStage(credit=1)
    loop, _ = bench.loop(stage)
    bench.publish("a", "b", "c")
    turn(loop)
    assert loop.not_ready() == ()
    bench.wait(loop, 61 * S)
    (reason,) = loop.not_ready()
    assert "rag.queries.v1[0] has 2 records waiting" in reason
    assert "nothing was taken in or finished for 61 s" in reason
    stage.finish("a")
    stage.units.clear()
    bench.wait(loop, S)
    assert loop.not_ready() == ()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["took", "waits", "finished", "empty"]),
            st.integers(0, 1),
            st.integers(0, 40),
        ),
        max_size=40,
    )
)
def test_a_stall_is_never_shorter_than_the_limit_and_lag_is_never_negative(
    steps: list[tuple[str, int, int]],
) -> None:
    machine, now_us, moved_us = progress(), 0, 0
    waiting = {A: 0, B: 0}
    for what, number, seconds in steps:
        now_us += seconds * S
        at = (A, B)[number]
        if what == "took":
            machine.took(at, now_us + 5 * S, now_us)  # a clock that is ahead
            moved_us = now_us
        elif what == "finished":
            machine.finished(now_us)
            moved_us = now_us
        else:
            waiting[at] = 7 if what == "waits" else 0
        machine.waits(waiting, now_us)
        if not any(waiting.values()):
            moved_us = now_us
        assert machine.lag_us(now_us) >= 0
        assert (machine.stalled(now_us) is not None) == (
            any(waiting.values()) and now_us - moved_us >= 30 * S
        )

"""A loop whose records wait while nothing moves is not ready, and says what stands still."""

from __future__ import annotations

from tests.loop.support import Bench, HandStage, turn

S = 1_000_000


def test_a_loop_is_not_ready_while_records_wait_and_nothing_moves() -> None:
    bench = Bench(partitions=1)
    stage = HandStage(credit=1)
    loop, _ = bench.loop(stage)
    bench.publish("a", "b", "c")
    turn(loop)
    assert loop.not_ready() == ()
    bench.clock.sleep(61 * S)
    turn(loop)
    (reason,) = loop.not_ready()
    assert "rag.queries.v1[0] has 2 records waiting" in reason
    assert "nothing was taken in or finished for 61 s" in reason
    stage.finish("a")
    stage.units.clear()
    bench.clock.sleep(S)
    turn(loop)
    assert loop.not_ready() == ()


def test_a_loop_with_nothing_to_do_stays_ready() -> None:
    bench = Bench(partitions=1)
    loop, _ = bench.loop(HandStage())
    turn(loop)
    bench.clock.sleep(1_000 * S)
    turn(loop)
    assert loop.not_ready() == ()

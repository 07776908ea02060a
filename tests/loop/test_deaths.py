"""A record of which the process dies is tried alone, and ends; other records do not (ADR 0027).

A process dies by `KilledError`, as `os._exit` in a stage or a kill: it writes nothing afterwards.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool.errors import CarpoolError, DeploymentError, FencedError
from carpool.kafka.clients import Position
from carpool.kafka.commit_metadata import (
    Deaths,
    Head,
    decode_metadata,
    head_of,
    in_topic,
    with_head,
)
from carpool.kafka.fencing import (
    FATAL_DEATHS,
    QUIET_US,
    SUSPECTS_MAX,
    after_death,
    after_life,
    after_progress,
    claims,
    left_by_the_dead,
)
from carpool.kafka.records import TopicPartition
from carpool.kafka.standing import reset_to, skipped
from carpool.loop.loop import Loop
from carpool.loop.partition_progress import PartitionProgress
from carpool.loop.stage import Unit
from schemas.query import Query
from schemas.topics import QUERIES, RETRIEVALS
from tests.loop.support import GROUP, Exact, HandStage
from tests.memory_broker import MemoryConsumer
from tests.rig.steps import KilledError

AT = TopicPartition(QUERIES.name, 0)
LETTERS = "rag.queries.v1.dlq"
TOPIC_ID = "AbC+/123456789012345-w"
STEP_US = 200_000


class MortalStage(HandStage):
    """Takes some ticks for a record, and dies of one whose text begins with `bad`."""

    def __init__(self, ticks: int = 2, dies: Callable[[str], bool] | None = None) -> None:
        super().__init__()
        self.ticks_needed = ticks
        self.dies = dies or (lambda text: text.startswith("bad"))
        self.ages: dict[int, int] = {}
        self.together: list[set[str | None]] = []

    def offer(self, unit: Unit[Query], now_us: int) -> None:
        super().offer(unit, now_us)
        self.together.append({each.record.text for each in self.units})
        if self.dies(unit.record.text or ""):
            raise KilledError

    def tick(self, now_us: int, waiting: int, next_commit_at_us: int = 0) -> int | None:
        for unit in list(self.units):
            self.ages[unit.id] = self.ages.get(unit.id, 0) + 1
            late = self.ages[unit.id] - self.ticks_needed
            if 0 <= late < len(unit.owed):  # a part a tick
                self.finish(unit.record.text or "", part=unit.owed[late][1])
            if late + 1 >= len(unit.owed):
                self.units.remove(unit)
        return None


class Lives:
    """A service that starts again whenever its process has died."""

    def __init__(self, bench: Exact, parts: int = 1) -> None:
        self.bench, self.parts = bench, parts
        self.deaths = 0
        self.stage = MortalStage()
        self._start()

    def _start(self) -> None:
        self.loop: Loop[Query]
        self.consumer: MemoryConsumer
        self.stage = MortalStage(self.stage.ticks_needed, self.stage.dies)
        self.loop, self.consumer = self.bench.loop(self.stage, parts=lambda _: self.parts)

    def kill(self) -> None:
        self.deaths += 1
        self.consumer.crash()
        self._start()

    def restart(self) -> None:
        """As after SIGTERM, with no time to finish."""
        self.consumer.close()
        self._start()

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            try:
                self.loop.step()
                self.loop.delivery.step(0)
            except KilledError:
                self.kill()
            self.bench.clock.sleep(STEP_US)

    def head(self) -> Head:
        return head_of(self.bench.broker.committed(GROUP)[AT].metadata)

    def failed(self) -> list[str]:
        letters = self.bench.broker.records(LETTERS)
        answers = self.bench.broker.records(RETRIEVALS.name)
        assert len(letters) == len(answers)
        assert {json.loads(each.value or b"")["status"] for each in answers} <= {"failed"}
        return [(each.value or b"").decode() for each in letters]


def lives(*texts: str, ticks: int = 2, parts: int = 1, partitions: int = 1) -> Lives:
    bench = Exact(partitions=partitions)
    found = Lives(bench, parts)
    found.stage.ticks_needed = ticks
    for number, text in enumerate(texts):
        bench.publish(text, partition=number % partitions)
    return found


@pytest.mark.parametrize("ticks", [1, 2, 30])
@pytest.mark.parametrize("place", [0, 7, 19])
def test_a_record_that_kills_its_process_ends_and_all_others_are_answered(
    place: int, ticks: int
) -> None:
    texts = [f"good {number}" for number in range(19)]
    service = lives(*texts[:place], "bad", *texts[place:], ticks=ticks)
    service.step(3_000)
    assert sorted(service.bench.results()) == sorted(f"{text}/0" for text in texts)
    (letter,) = service.failed()
    assert json.loads(letter)["text"] == "bad"
    assert service.deaths == FATAL_DEATHS
    assert service.head().deaths is None, "the rest is taken in as before"


def test_a_record_that_may_have_killed_its_process_is_tried_alone() -> None:
    service = lives("a", "b", "c", ticks=5, partitions=2, parts=3)
    for _ in range(2):
        service.step(3)
        service.kill()
    service.step()
    assert service.head().deaths == Deaths(2, 2, is_alone=True)
    service.bench.publish("d", "e", partition=1)
    service.step(200)
    with_suspects = [each for each in service.stage.together if each & {"a", "b", "c"}]
    assert sorted(map(sorted, with_suspects)) == [["a"], ["b"], ["c"]]
    assert len(service.bench.results()) == 5 * 3
    assert service.head() == Head("member-3", None)


def test_each_part_of_a_record_gets_its_end() -> None:
    service = lives("good", "bad", parts=3)
    service.step(400)
    assert sorted(service.bench.results()) == ["good/0", "good/1", "good/2"]
    assert len(service.failed()) == 3
    answers = [
        json.loads(each.value or b"") for each in service.bench.broker.records(RETRIEVALS.name)
    ]
    errors = [answer["error"] for answer in answers]
    assert [error["type"] for error in errors] == ["processing_failed"] * 3
    assert all("died twice" in error["message"] and error["retryable"] for error in errors)


@pytest.mark.parametrize("seed", range(8))
def test_kills_at_any_time_end_no_record(seed: int) -> None:
    """Every two seconds in the mean, with records of a second in hand."""
    rng = random.Random(seed)
    texts = [f"good {number}" for number in range(60)]
    service = lives(*texts, ticks=5, partitions=2)
    while len(service.bench.results()) < len(texts):
        service.step()
        if rng.random() < 0.1:
            service.kill()
        assert service.failed() == []
    assert sorted(service.bench.results()) == sorted(f"{text}/0" for text in texts)


def test_kills_of_an_idle_process_raise_nothing() -> None:
    service = lives("a")
    service.step(20)
    for _ in range(5):
        service.kill()
        service.step(3)
    assert service.head().deaths is None


def test_a_clean_restart_in_the_middle_of_work_raises_nothing() -> None:
    service = lives("a", "b", ticks=10**6)
    for _ in range(5):
        service.step(5)
        service.restart()
        service.step()
        assert service.head() == Head(f"member-{service.bench.members}", None)
        assert service.deaths == 0


def test_a_rebalance_and_a_lost_partition_raise_nothing() -> None:
    service = lives("a", "b", ticks=10**6)
    other, consumer = service.bench.loop(MortalStage(10**6))
    for owner in (consumer, service.consumer, consumer, service.consumer):
        service.bench.broker.assign(GROUP, {0: owner})
        for _ in range(3):
            service.step()
            other.step()
        assert service.head().deaths is None
    consumer.close()
    for _ in range(3):
        service.step(3)
        service.bench.broker.expel(GROUP, service.consumer)
    service.step(3)
    assert service.head() == Head("member-1", None)


def test_a_clean_end_keeps_the_deaths_and_the_record_is_alone_no_more() -> None:
    service = lives("bad", "a")
    service.step(5)
    assert service.deaths == 3
    service.stage.dies = lambda _: False
    service.stage.ticks_needed = 10**6
    service.step(QUIET_US // STEP_US - 5)
    assert service.head().deaths == Deaths(3, 2), "it would die of something else meanwhile"
    service.step(10)
    assert service.head().deaths == Deaths(3, 2, is_alone=True)
    service.consumer.close()
    assert service.head() == Head(None, Deaths(3, 2))


@pytest.mark.parametrize(
    ("error", "is_death"),
    [
        (SystemExit(), True),
        (KeyboardInterrupt(), True),
        (MemoryError(), True),
        (CarpoolError("a thread broke"), True),
        (FencedError("another process has the name"), False),
    ],
)
def test_a_defect_that_ends_the_process_is_a_death(error: BaseException, is_death: bool) -> None:
    bench = Exact(partitions=1)

    class Raises(MortalStage):
        def tick(self, now_us: int, waiting: int, next_commit_at_us: int = 0) -> int | None:
            if self.units:
                raise error
            return None

    bench.publish("a")
    for deaths in (0, 1, 2):
        loop, _ = bench.loop(Raises(), is_stepped=False)
        with pytest.raises(type(error)):
            loop.run(drain_us=0)
        head = head_of(bench.broker.committed(GROUP)[AT].metadata)
        assert (head.deaths.times if head.deaths else 0) == deaths * is_death
        assert (head.instance_id is not None) == is_death


# The decision and the metadata.


def test_the_deaths_of_a_position() -> None:
    first = after_death(None, 1_000)
    assert first == Deaths(1, SUSPECTS_MAX)
    assert after_death(None, 0) is None, "nothing was in hand"
    assert after_progress(first, 1) is None
    second = after_death(first, 2_000)
    assert second == Deaths(2, SUSPECTS_MAX)
    assert after_death(second, 2_000) == second, "it died before the record was in hand alone"
    assert second is not None
    alone = second._replace(is_alone=True)
    third = after_death(alone, 2_000)
    assert third == Deaths(3, SUSPECTS_MAX)
    assert after_death(third, 2_000) == second, "it died without the record, too"
    assert after_progress(second, 6) == Deaths(2, SUSPECTS_MAX - 6)
    assert after_progress(second, SUSPECTS_MAX) is None
    assert after_progress(third, 1) is None, "the deaths had another cause"
    assert after_life(alone) == second


def test_a_claim_counts_the_death_of_the_owner_only() -> None:
    held, given_up = Position(7, "2;old;1+1"), Position(7, "1;1+1")
    fresh = TopicPartition(QUERIES.name, 1)
    assert left_by_the_dead({AT: held, fresh: given_up}, "new", ()) == [AT]
    assert left_by_the_dead({AT: held}, "old", ()) == [AT], "a restart under the same name"
    assert left_by_the_dead({AT: held}, "old", {AT}) == [], "this process itself"
    assert claims({AT: held}, "new", {AT: 10})[AT] == Position(7, "3;1.3;new;1+1")
    assert claims({AT: given_up}, "new", {})[AT] == Position(7, "2;new;1+1")
    again = Position(7, "3;2.3!;old;1+1")
    assert claims({AT: again}, "new", {AT: 99})[AT] == Position(7, "3;3.3;new;1+1")
    both = claims({AT: again, fresh: held}, "new", {AT: 99, fresh: 99})
    assert both[fresh] == Position(7, "2;new;1+1"), "the record alone in hand was the cause"
    assert claims({AT: again}, "old", {})[AT] == Position(7, "3;2.3;old;1+1")


@given(
    st.builds(
        Head,
        st.none() | st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True),
        st.none()
        | st.builds(
            Deaths, st.integers(1, FATAL_DEATHS), st.integers(1, SUSPECTS_MAX), st.booleans()
        ),
        st.none() | st.just(TOPIC_ID),
    ),
    st.sampled_from(
        ["", "1;1+3", "2;old;1+3,7:0-2.5", "3;2.10!;;1+3", "3;1.1;old;", f"4;{'x' * 22};2;old;1+3"]
    ),
)
def test_a_head_is_read_as_it_was_written_and_keeps_the_runs(head: Head, metadata: str) -> None:
    written = with_head(metadata, head)
    assert head_of(written) == head
    assert decode_metadata(7, written) == decode_metadata(7, metadata)
    assert len(written) <= 75 + len(in_topic(metadata, TOPIC_ID) or metadata)


def test_an_offset_of_another_topic_of_that_name_is_none() -> None:
    begun = in_topic("2;a;1+3", TOPIC_ID)
    assert begun == f"4;{TOPIC_ID};2;a;1+3"
    assert in_topic(begun, TOPIC_ID) == begun
    assert in_topic(begun, "x" * 22) is None
    progress = PartitionProgress(7, begun)
    assert progress.position_with({}).metadata == f"4;{TOPIC_ID};1;1+3"
    (claim,) = claims({AT: Position(7, begun)}, "b", {}).values()
    assert claim.metadata == f"4;{TOPIC_ID};2;b;1+3"


@pytest.mark.parametrize("text", ["3;", "3;6.1;a;", "3;1.12345;a;", "3;1.1?;a;", "4;a;", "3;1.1;"])
def test_a_head_of_another_program_is_not_guessed(text: str) -> None:
    with pytest.raises(DeploymentError, match="cannot be read"):
        head_of(text)


def test_an_operator_who_moves_the_offset_clears_the_deaths() -> None:
    now = Position(7, "3;2.10!;one;2+3")
    assert skipped(now, 7) == Position(8, "2;one;1+3")
    assert reset_to(now, 7) == Position(7, "2;one;2+3")


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 30))
def test_any_deaths_end_the_bad_records_only(seed: int) -> None:
    """Some records kill, and the process is killed once at any place, too."""
    rng = random.Random(seed)
    texts = [f"good {number}" for number in range(12)]
    bad = [f"bad {number}" for number in range(rng.randrange(3))]
    service = lives(
        *rng.sample(texts + bad, len(texts + bad)),
        ticks=rng.randrange(1, 6),
        partitions=rng.randrange(1, 3),
    )
    service.step(rng.randrange(60))
    service.kill()
    service.step(1_000)
    assert sorted(service.bench.results()) == sorted(f"{text}/0" for text in texts)
    assert sorted(json.loads(letter)["text"] for letter in service.failed()) == bad
    assert service.deaths <= 1 + (FATAL_DEATHS + 2) * len(bad)

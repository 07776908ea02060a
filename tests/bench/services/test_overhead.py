"""What the way through the services costs: times, accounting, promises, and the bare hops."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from msgspec.structs import replace

from bench.core.accounting import account
from bench.services.overhead.bare_hop import copied, ends_of, records_of
from bench.services.overhead.contestants import DeliveryContestant, chosen
from bench.services.overhead.outcome import (
    Journey,
    MeasuredLoad,
    cost,
    journeys,
    promises,
    reads,
    reads_of_groups,
    side_result,
)
from carpool.errors import ConfigError
from producers.send_load import SentQuestion
from tests.bench.helpers import LOAD, received
from tests.records import a_group, a_grouped_query, a_retrieval, an_answer

ONE = DeliveryContestant(
    name="one", delivery="exactly_once", brokers=1, p50_ms_max=60, p99_ms_max=150
)
SENT = {"a": SentQuestion(query_id="a", row=0, intended_us=10_000, sent_us=12_000)}


def load_of(*totals_ms: float, rate_per_s: float = 200.0, answers: int = 1) -> MeasuredLoad:
    return MeasuredLoad(
        seconds=2.0,
        load=replace(LOAD, rate_per_s=rate_per_s),
        accounting=account("a", "a" * answers),
        journeys=tuple(
            Journey(intended_us=0, sent_us=0, read_us=(0, 0, int(total * 1_000)))
            for total in totals_ms
        ),
        cpu_s={"grouper": 0.5},
    )


BARE = [load_of(5, 10, 15)]


def test_a_journey_counts_from_the_intended_time_and_its_stages_add_up() -> None:
    group = a_group(a_grouped_query("a"), a_grouped_query("other"))
    hops = [
        reads_of_groups([received("", group, 30_000)]),
        reads([received("a", a_retrieval("a"), 45_000)]),
        reads([received("a", an_answer("a"), at_us) for at_us in (50_000, 99_000)]),
    ]
    (journey,) = journeys(SENT, hops)
    stages = journey.stages_ms()
    assert list(stages.values()) == [2.0, 18.0, 15.0, 5.0, 40.0]
    assert sum(stages.values()) == 2 * stages["total"]


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_question_without_a_record_after_each_hop_has_no_journey(missing: int) -> None:
    hops = [[("a", 20_000)] for _ in range(3)]
    assert len(journeys(SENT, hops)) == 1
    hops[missing] = []
    assert journeys(SENT, hops) == ()


def test_loads_are_pooled_and_compared_with_the_bare_hops() -> None:
    found = side_result([load_of(10, 20, 30), load_of(40)])
    assert found.total is not None
    assert (found.total.count, found.total.p50, found.total.max) == (4, 25.0, 40.0)
    assert (found.cpu_s, found.cpu_ms_a_question) == ({"grouper": 1.0}, 250.0)
    ratio = cost(ONE, [load_of(10, 20, 30)], BARE).ratio
    assert ratio is not None
    assert (ratio.p50, ratio.p99, ratio.cpu) == pytest.approx((2.0, 2.0, 1.0))
    assert cost(ONE, [load_of()], BARE).ratio is None
    assert cost(ONE, [load_of(1)], [load_of()]).ratio is None


@pytest.mark.parametrize(
    ("carpool", "bare", "broken"),
    [
        (load_of(59, 59, 59), BARE[0], set()),
        (load_of(61, 61, 61), BARE[0], {"p50 at most 60 ms"}),
        (load_of(*[10] * 50, 500), BARE[0], {"p99 at most 150 ms"}),
        (load_of(1, answers=2), BARE[0], {"each question has one answer"}),
        (load_of(1, rate_per_s=100.0), BARE[0], {"questions were sent at the rate"}),
        (load_of(1), load_of(1, answers=2), {"bare hops copied each question once"}),
        (load_of(1), load_of(1, rate_per_s=100.0), {"questions were sent at the rate"}),
        (load_of(), BARE[0], {"p50 at most 60 ms", "p99 at most 150 ms"}),
    ],
)
def test_each_promise_can_break(
    carpool: MeasuredLoad, bare: MeasuredLoad, broken: set[str]
) -> None:
    found = promises([cost(ONE, [carpool], [bare])], 200.0)
    names = {promise.removeprefix("one: ") for promise, is_kept in found.items() if not is_kept}
    assert {name.removesuffix(" that was asked for") for name in names} == broken


def test_an_unknown_contestant_is_refused() -> None:
    with pytest.raises(ConfigError, match="exactly-once-1, exactly-once-3, at-least-once-1"):
        chosen(["exactly-once-2"])


class PolledRecord:
    """A record or an error as confluent-kafka returns it."""

    def __init__(self, partition: int, offset: int, error: KafkaError | None = None) -> None:
        self._partition, self._offset, self._error = partition, offset, error

    def error(self) -> KafkaError | None:
        return self._error

    def topic(self) -> str:
        return "a"

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"v"

    def headers(self) -> list[tuple[str, bytes]]:
        return [("h", b"1")]


def test_a_hop_copies_records_and_continues_after_the_last_and_ends_on_a_fatal_error() -> None:
    found: list[Any] = [PolledRecord(0, 4), PolledRecord(1, 7), PolledRecord(0, 5)]
    end: Any = PolledRecord(0, 6, KafkaError(KafkaError._PARTITION_EOF))
    fatal: Any = PolledRecord(0, 6, KafkaError(KafkaError._FENCED, "fenced", True))
    assert records_of([None, *found, end]) == found
    assert copied(found[0]) == {"key": b"k", "value": b"v", "headers": [("h", b"1")]}
    assert {(at.partition, at.offset) for at in ends_of(found)} == {(0, 6), (1, 8)}
    with pytest.raises(KafkaException):
        records_of([fatal])

"""The cost of a contestant from its questions and records: stages, CPU, promises. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from bench.core.accounting import Accounting
from bench.core.spread import Spread, spread
from bench.core.topic_recorder import ReceivedRecord
from bench.services.overhead.contestants import DeliveryContestant
from producers.send_load import LoadSummary, SentQuestion
from schemas.codec import decode
from schemas.group import Group

STAGES = ("send", "grouper", "searcher", "generator", "total")
"""Times until a question is sent, until its record is read after each hop, and of all together.

A hop is a service, or the bare hop in its place.
"""

RATE_SHARE_MIN = 0.99


class Journey(msgspec.Struct, frozen=True, kw_only=True):
    """A question and when its record was read after each of three hops. Epoch microseconds."""

    intended_us: int
    sent_us: int
    read_us: tuple[int, int, int]

    def stages_ms(self) -> dict[str, float]:
        """Returns the time of each of `STAGES`; negative where an earlier record was read later."""
        ends = (self.intended_us, self.sent_us, *self.read_us)
        took = [(end - begin) / 1_000 for begin, end in pairwise(ends)]
        return dict(zip(STAGES, [*took, (ends[-1] - self.intended_us) / 1_000], strict=True))


class MeasuredLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One measured load of one side. `cpu_s`: CPU seconds of this load by process."""

    seconds: float
    load: LoadSummary
    accounting: Accounting
    journeys: tuple[Journey, ...]
    cpu_s: dict[str, float]


class SideResult(msgspec.Struct, frozen=True, kw_only=True):
    """All loads of one side. Times in ms over all questions."""

    seconds: float
    loads: tuple[LoadSummary, ...]
    accounting: tuple[Accounting, ...]
    stages_ms: dict[str, Spread]
    cpu_s: dict[str, float]
    cpu_ms_a_question: float

    @property
    def total(self) -> Spread | None:
        """From the intended time until the last record was read; None where nothing came back."""
        return self.stages_ms.get("total")


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """Carpool over bare hops: percentiles of the total, and CPU time for a question."""

    p50: float
    p99: float
    cpu: float


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """A contestant and the bare hops on its brokers. `ratio`: None where nothing came back."""

    contestant: DeliveryContestant
    carpool: SideResult
    bare: SideResult
    ratio: Ratio | None


def reads(records: Iterable[ReceivedRecord]) -> list[tuple[str, int]]:
    """Returns (question id, time of reading) of each record, whose key is the id."""
    return [(record.key, record.received_us) for record in records]


def reads_of_groups(records: Iterable[ReceivedRecord]) -> list[tuple[str, int]]:
    """Returns (question id, time of reading) of each query of each group."""
    return [
        (grouped.query.query_id, record.received_us)
        for record in records
        for grouped in decode(Group, record.value, record.headers).queries
    ]


def journeys(
    sent: Mapping[str, SentQuestion], hops: Sequence[Sequence[tuple[str, int]]]
) -> tuple[Journey, ...]:
    """Returns the journeys of the questions with a record after each of three hops.

    `hops`: the reads after each hop, in order; the first of a question counts.
    """
    one, two, three = (dict(reversed(found)) for found in hops)
    return tuple(
        Journey(
            intended_us=question.intended_us,
            sent_us=question.sent_us,
            read_us=(one[key], two[key], three[key]),
        )
        for key, question in sent.items()
        if key in one and key in two and key in three
    )


def cost(
    contestant: DeliveryContestant, carpool: Sequence[MeasuredLoad], bare: Sequence[MeasuredLoad]
) -> Cost:
    """Returns the cost of a contestant with its ratio to the bare hops."""
    ours, theirs = side_result(carpool), side_result(bare)
    return Cost(contestant=contestant, carpool=ours, bare=theirs, ratio=ratio(ours, theirs))


def ratio(carpool: SideResult, bare: SideResult) -> Ratio | None:
    """Returns Carpool over bare hops; None where either has nothing to compare."""
    ours, theirs = carpool.total, bare.total
    if ours is None or theirs is None or not (theirs.p50 and theirs.p99 and bare.cpu_ms_a_question):
        return None
    return Ratio(
        p50=ours.p50 / theirs.p50,
        p99=ours.p99 / theirs.p99,
        cpu=carpool.cpu_ms_a_question / bare.cpu_ms_a_question,
    )


def side_result(measured: Sequence[MeasuredLoad]) -> SideResult:
    """Returns all loads of one side together."""
    stages = [journey.stages_ms() for each in measured for journey in each.journeys]
    cpu_s: dict[str, float] = {}
    for each in measured:
        for name, seconds in each.cpu_s.items():
            cpu_s[name] = cpu_s.get(name, 0.0) + seconds
    spreads = {name: spread(times[name] for times in stages) for name in STAGES}
    return SideResult(
        seconds=sum(each.seconds for each in measured),
        loads=tuple(each.load for each in measured),
        accounting=tuple(each.accounting for each in measured),
        stages_ms={name: found for name, found in spreads.items() if found is not None},
        cpu_s=cpu_s,
        cpu_ms_a_question=sum(cpu_s.values()) * 1_000 / max(1, len(stages)),
    )


def promises(costs: Iterable[Cost], rate_per_s: float) -> dict[str, bool]:
    """Returns each promise and whether it was kept; of bare hops, what makes them a baseline."""
    found: dict[str, bool] = {}
    for each in costs:
        contestant, total = each.contestant, each.carpool.total
        name = contestant.name
        for percentile, bound in (("p50", contestant.p50_ms_max), ("p99", contestant.p99_ms_max)):
            if bound is not None:
                found[f"{name}: {percentile} at most {bound:g} ms"] = (
                    total is not None and getattr(total, percentile) <= bound
                )
        found[f"{name}: each question has one answer"] = all(
            accounting.holds for accounting in each.carpool.accounting
        )
        found[f"{name}: bare hops copied each question once"] = all(
            accounting.holds for accounting in each.bare.accounting
        )
        found[f"{name}: questions were sent at the rate that was asked for"] = all(
            load.rate_per_s >= rate_per_s * RATE_SHARE_MIN
            for side in (each.carpool, each.bare)
            for load in side.loads
        )
    return found

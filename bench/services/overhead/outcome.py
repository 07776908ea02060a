"""From what was sent and read to what a contestant cost: times by stage, commits, CPU, promises.
Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import pairwise

import msgspec

from bench.core.accounting import Books, close_books
from bench.core.spread import Spread, spread
from bench.core.topic_recorder import Arrived
from bench.services.overhead.contestants import Contestant
from bench.services.overhead.disturbance import MachineLoad
from producers.send_load import LoadSummary, SentQuestion
from schemas.answer import Answer
from schemas.codec import decode
from schemas.group import Group

STAGES = ("send", "grouper", "searcher", "generator", "total")
"""Seen from outside: until a question is sent, then until a committed record of it is read behind
each service, or behind the bare hop in its place.
"""

RATE_SHARE_MIN = 0.99
ANSWERED = ("ok", "partial")


class Journey(msgspec.Struct, frozen=True, kw_only=True):
    """A question and when records of it could be read, epoch microseconds. `services_ms`: what its
    answer says of stages.
    """

    intended_us: int
    sent_us: int
    read_us: tuple[int, int, int]
    services_ms: dict[str, float] = {}

    def stages_ms(self) -> dict[str, float]:
        """Returns the time of each of `STAGES`. One service's may come out below 0 where its record
        was read late.
        """
        ends = (self.intended_us, self.sent_us, *self.read_us)
        took = [(end - begin) / 1_000 for begin, end in pairwise(ends)]
        return dict(zip(STAGES, [*took, (ends[-1] - self.intended_us) / 1_000], strict=True))


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One measured load of one side. CPU seconds by process and commits by "SERVICE OUTCOME" are of
    this load only.

    `standby_cpu_s`: what the processes of the other side took meanwhile, which have nothing to do.
    """

    seconds: float
    load: LoadSummary
    books: Books
    journeys: tuple[Journey, ...]
    commits: dict[str, float]
    cpu_s: dict[str, float]
    standby_cpu_s: float
    machine: MachineLoad


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What one side came to over all its rounds. Times in ms over all questions; `services_ms`:
    stages as the services say.

    `machine`: of each round.
    """

    seconds: float
    loads: tuple[LoadSummary, ...]
    books: tuple[Books, ...]
    stages_ms: dict[str, Spread]
    services_ms: dict[str, Spread]
    commits_per_s: dict[str, float]
    cpu_s: dict[str, float]
    cpu_ms_a_question: float
    standby_cores: float
    machine: tuple[MachineLoad, ...]

    @property
    def total(self) -> Spread | None:
        """From the intended time until the last committed record was read; None where nothing came
        back.
        """
        return self.stages_ms.get("total")


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """Carpool over bare hops: of percentiles of the total, and of CPU time a question."""

    p50: float
    p99: float
    cpu: float


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What a contestant cost, beside bare hops on the same brokers. `ratio`: None where nothing
    came back.
    """

    contestant: Contestant
    carpool: Measured
    bare: Measured
    ratio: Ratio | None


def journeys(
    sent: Mapping[str, SentQuestion], records: Mapping[str, Iterable[Arrived]]
) -> tuple[Journey, ...]:
    """Returns the journeys of the questions that have a group, a retrieval and an answer; the first
    record counts.

    `records`: under "group", "retrieval" and "answer".
    """
    groups = _first_groups(records["group"], sent.keys())
    retrievals = _first(records["retrieval"], sent.keys())
    found = []
    for query_id, answer in _first(records["answer"], sent.keys()).items():
        if query_id not in groups or query_id not in retrievals:
            continue
        found.append(
            Journey(
                intended_us=sent[query_id].intended_us,
                sent_us=sent[query_id].sent_us,
                read_us=(groups[query_id], retrievals[query_id].arrived_us, answer.arrived_us),
                services_ms=decode(Answer, answer.value, answer.headers).timings_ms,
            )
        )
    return tuple(found)


def bare_journeys(
    sent: Mapping[str, SentQuestion], hops: Sequence[Iterable[Arrived]]
) -> tuple[Journey, ...]:
    """Returns the journeys of the questions that were read behind each of three bare hops; the
    first record counts.
    """
    first, second, third = (_first(records, sent.keys()) for records in hops)
    return tuple(
        Journey(
            intended_us=sent[query_id].intended_us,
            sent_us=sent[query_id].sent_us,
            read_us=(first[query_id].arrived_us, second[query_id].arrived_us, last.arrived_us),
        )
        for query_id, last in third.items()
        if query_id in first and query_id in second
    )


def answer_books(sent: Set[str], answers: Iterable[Arrived]) -> Books:
    """Returns whether each question got one answer that holds one."""
    decoded = [
        (record.key, decode(Answer, record.value, record.headers).status) for record in answers
    ]
    ended = {key: status for key, status in decoded if status not in ANSWERED}
    return close_books(sent, (key for key, status in decoded if status in ANSWERED), ended)


def copy_books(sent: Set[str], copies: Iterable[Arrived]) -> Books:
    """Returns whether each question came out of the bare hops once."""
    return close_books(sent, (record.key for record in copies), {})


def cost(contestant: Contestant, carpool: Sequence[Round], bare: Sequence[Round]) -> Cost:
    """Returns what the rounds of one contestant come to, and those of the bare hops beside it."""
    ours, theirs = measured(carpool), measured(bare)
    return Cost(contestant=contestant, carpool=ours, bare=theirs, ratio=ratio(ours, theirs))


def ratio(carpool: Measured, bare: Measured) -> Ratio | None:
    """Returns Carpool over bare hops; None where either has nothing to compare."""
    ours, theirs = carpool.total, bare.total
    if ours is None or theirs is None or not (theirs.p50 and theirs.p99 and bare.cpu_ms_a_question):
        return None
    return Ratio(
        p50=ours.p50 / theirs.p50,
        p99=ours.p99 / theirs.p99,
        cpu=carpool.cpu_ms_a_question / bare.cpu_ms_a_question,
    )


def measured(rounds: Sequence[Round]) -> Measured:
    """Returns what the rounds of one side come to."""
    all_journeys = [journey for each in rounds for journey in each.journeys]
    seconds = sum(each.seconds for each in rounds)
    cpu_s = _added(each.cpu_s for each in rounds)
    return Measured(
        seconds=seconds,
        loads=tuple(each.load for each in rounds),
        books=tuple(each.books for each in rounds),
        stages_ms=_spreads(journey.stages_ms() for journey in all_journeys),
        services_ms=_spreads(journey.services_ms for journey in all_journeys),
        commits_per_s={
            name: count / seconds for name, count in _added(each.commits for each in rounds).items()
        },
        cpu_s=cpu_s,
        cpu_ms_a_question=sum(cpu_s.values()) * 1_000 / max(1, len(all_journeys)),
        standby_cores=sum(each.standby_cpu_s for each in rounds) / seconds,
        machine=tuple(each.machine for each in rounds),
    )


def promises(costs: Iterable[Cost], rate_per_s: float) -> dict[str, bool]:
    """Returns what was promised of each contestant, and whether it held; of the bare hops, what
    makes them a baseline.
    """
    found: dict[str, bool] = {}
    for each in costs:
        contestant, total = each.contestant, each.carpool.total
        name = contestant.name
        found[f"{name}: p50 at most {contestant.p50_ms_max:g} ms"] = (
            total is not None and total.p50 <= contestant.p50_ms_max
        )
        if contestant.p99_ms_max is not None:
            found[f"{name}: p99 at most {contestant.p99_ms_max:g} ms"] = (
                total is not None and total.p99 <= contestant.p99_ms_max
            )
        found[f"{name}: each question has one answer"] = all(
            books.holds for books in each.carpool.books
        )
        found[f"{name}: bare hops copied each question once"] = all(
            books.holds for books in each.bare.books
        )
        found[f"{name}: questions were sent at the rate that was asked for"] = all(
            load.rate_per_s >= rate_per_s * RATE_SHARE_MIN
            for side in (each.carpool, each.bare)
            for load in side.loads
        )
    return found


def _first(records: Iterable[Arrived], ids: Set[str]) -> dict[str, Arrived]:
    found: dict[str, Arrived] = {}
    for record in records:
        if record.key in ids:
            found.setdefault(record.key, record)
    return found


def _first_groups(records: Iterable[Arrived], ids: Set[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for record in records:
        for grouped in decode(Group, record.value, record.headers).queries:
            if grouped.query.query_id in ids:
                found.setdefault(grouped.query.query_id, record.arrived_us)
    return found


def _spreads(times_ms: Iterable[Mapping[str, float]]) -> dict[str, Spread]:
    by_stage: dict[str, list[float]] = {}
    for times in times_ms:
        for stage, time_ms in times.items():
            by_stage.setdefault(stage, []).append(time_ms)
    return {
        stage: found for stage, values in by_stage.items() if (found := spread(values)) is not None
    }


def _added(counts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in counts:
        for name, count in each.items():
            found[name] = found.get(name, 0.0) + count
    return found

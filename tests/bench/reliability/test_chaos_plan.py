"""Whom to strike, how and when: drawn from a seed, and carried out only where it counts."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from bench.reliability.chaos.keeper import Keeper, Kept
from bench.reliability.chaos.plan import (
    OF_BROKERS,
    Kind,
    Strike,
    in_transaction_min,
    kind_counts,
    plan_strikes,
)
from bench.reliability.chaos.strikes import Striker, Struck, quiet_after_s
from carpool.testing.transactions import Transaction

MEMBERS = ["grouper-1", "grouper-2", "searcher-1"]
BROKERS = ["broker-1", "broker-2", "broker-3"]
OPEN = Transaction(state="Ongoing", topics=("rag.groups.v1", "__consumer_offsets"))
ENDED = Transaction(state="CompleteCommit", topics=())


def test_the_same_seed_makes_the_same_plan_and_another_one_another() -> None:
    def plan(seed: int) -> tuple[Strike, ...]:
        return plan_strikes(60, duration_s=600, seed=seed, members=MEMBERS, brokers=BROKERS)

    assert plan(0) == plan(0)
    assert plan(0) != plan(1)


def test_a_plan_has_every_kind_and_spreads_over_the_run() -> None:
    plan = plan_strikes(60, duration_s=600, seed=3, members=MEMBERS, brokers=BROKERS)
    kinds = Counter(strike.kind for strike in plan)
    assert kinds == kind_counts(60)
    assert kinds["kill in a transaction"] >= in_transaction_min(60) == 10
    times = [strike.at_s for strike in plan]
    assert times == sorted(times)
    assert times[0] < 60
    assert 480 < times[-1] < 600, "what comes after the last strike is seen too"
    assert all(
        set(strike.victims) == set(BROKERS if strike.kind in OF_BROKERS else MEMBERS)
        for strike in plan
    )


@pytest.mark.parametrize("count", range(1, 70))
def test_kinds_add_up_however_few_strikes_there_are(count: int) -> None:
    assert sum(kind_counts(count).values()) == count
    assert kind_counts(count)["kill in a transaction"] >= in_transaction_min(count) - 1


@dataclass
class FakeProcess:
    log: list[str] = field(default_factory=list)
    is_running: bool = True

    def kill(self) -> None:
        self.log.append("kill")
        self.is_running = False

    def pause(self) -> None:
        self.log.append("pause")

    def resume(self) -> None:
        self.log.append("resume")

    def start(self) -> None:
        self.log.append("start")
        self.is_running = True


@dataclass
class FakeRun:
    """What strikes see of a run; `transactions` are what the coordinator says, one look after
    another.
    """

    now: float = 100.0
    sent: int = 10
    answers: int = 5
    holding: dict[str, int] = field(default_factory=dict)
    transactions: list[Transaction | None] = field(default_factory=list)
    is_whole: bool = True

    def now_s(self) -> float:
        return self.now

    def published(self) -> int:
        return self.sent

    def answered(self) -> int:
        return self.answers

    def in_flight(self, member: str) -> int:
        return self.holding.get(member, 0)

    def transaction(self, member: str) -> Transaction | None:
        return self.transactions.pop(0) if self.transactions else None

    def brokers_are_whole(self) -> bool:
        return self.is_whole


def keeper() -> tuple[Keeper, dict[str, FakeProcess]]:
    processes = {name: FakeProcess() for name in (*MEMBERS, *BROKERS)}
    kept = {
        name: Kept(name=name, process=process, start=process.start, is_up=lambda: True)
        for name, process in processes.items()
    }
    return Keeper(kept), processes


def strike(kind: Kind, *victims: str, at_s: float = 1.0, away_s: float = 2.0) -> Strike:
    return Strike(at_s=at_s, kind=kind, victims=victims, away_s=away_s)


def striker(run: FakeRun, *plan: Strike) -> tuple[Striker, dict[str, FakeProcess]]:
    found, processes = keeper()
    return Striker(list(plan), found, run, random.Random(0), sleep=lambda _: None), processes


def test_a_kill_strikes_the_first_victim_with_work_in_flight() -> None:
    run = FakeRun(holding={"searcher-1": 3}, transactions=[ENDED])
    strikes, processes = striker(run, strike("kill", "grouper-1", "searcher-1"))
    strikes.step()
    assert processes["grouper-1"].log == []
    assert processes["searcher-1"].log == ["pause", "kill"]
    assert [(each.victim, each.in_flight, each.is_in_transaction) for each in strikes.struck] == [
        ("searcher-1", 3, False)
    ]


def test_nothing_is_struck_without_work_in_flight_or_without_progress_since_the_last() -> None:
    run = FakeRun(holding={"grouper-1": 1})
    strikes, _ = striker(run, strike("kill", "grouper-1"), strike("kill", "grouper-2"))
    strikes.step()
    assert len(strikes.struck) == 1
    run.holding["grouper-2"] = 1
    strikes.step()
    assert len(strikes.struck) == 1, "no answer since"
    run.answers += 1
    strikes.step()
    assert len(strikes.struck) == 2
    run.answers, run.holding = run.sent, {"grouper-1": 1}
    strikes.pending.append(strike("kill", "grouper-1"))
    strikes.step()
    assert len(strikes.struck) == 2, "all is answered"


def test_a_kill_in_a_transaction_lets_victim_go_on_until_the_coordinator_says_it_is_open() -> None:
    run = FakeRun(holding={"grouper-1": 1}, transactions=[None, ENDED, OPEN])
    strikes, processes = striker(run, strike("kill in a transaction", "grouper-1"))
    strikes.step()
    assert processes["grouper-1"].log == ["pause", "resume", "pause", "resume", "pause", "kill"]
    (struck,) = strikes.struck
    assert struck.is_in_transaction
    assert struck.transaction is not None
    assert struck.transaction.holds_offsets


def test_a_kill_in_a_transaction_that_never_opens_strikes_nobody_and_stays_due() -> None:
    run = FakeRun(holding={"grouper-1": 1})
    strikes, processes = striker(run, strike("kill in a transaction", "grouper-1"))
    strikes.step()
    assert strikes.struck == []
    assert len(strikes.pending) == 1
    assert processes["grouper-1"].log[-1] == "resume"


def test_broker_is_struck_only_all_have_every_copy_and_others_have_their_turn_meanwhile() -> None:
    run = FakeRun(holding={"grouper-1": 1}, is_whole=False)
    strikes, processes = striker(
        run, strike("kill a broker", "broker-2"), strike("pause", "grouper-1", at_s=2.0)
    )
    strikes.step()
    assert [each.kind for each in strikes.struck] == ["pause"]
    run.is_whole, run.answers = True, 6
    strikes.step()
    assert processes["broker-2"].log == ["kill"]
    assert strikes.pending == []


def test_what_was_killed_comes_back_in_its_time_and_what_was_paused_goes_on() -> None:
    found, processes = keeper()
    processes["grouper-1"].kill()
    found.killed("grouper-1", 10.0, away_s=2.0)
    processes["broker-1"].pause()
    found.paused("broker-1", 10.0, away_s=5.0)
    found.step(11.0)
    assert not found.is_up("grouper-1")
    found.step(12.0)
    found.step(12.5)
    assert found.is_up("grouper-1")
    assert not found.all_up()
    found.step(15.0)
    found.step(15.0)
    assert processes["broker-1"].log == ["pause", "resume"]
    assert found.all_up()
    assert found.back_after_s == {"grouper-1": [2.5], "broker-1": [5.0]}
    assert found.ended == []


def test_what_ends_by_itself_is_noted_and_started_again() -> None:
    found, processes = keeper()
    processes["searcher-1"].is_running = False
    found.step(3.0)
    assert [(each.name, each.at_s) for each in found.ended] == [("searcher-1", 3.0)]
    found.step(4.0)
    found.step(4.1)
    assert processes["searcher-1"].log == ["start"]
    assert found.is_up("searcher-1")


def test_the_quiet_after_a_strike_ends_with_the_next_strike() -> None:
    def at(at_s: float, kind: Kind) -> Struck:
        return Struck(at_s=at_s, kind=kind, victim="x", away_s=0, in_flight=1, answers=0)

    answers_s = [9.0, 10.5, 14.0, 20.1, 20.2, 60.0]
    quiet = quiet_after_s([at(10, "kill"), at(20, "pause")], answers_s)
    assert {kind: [round(each, 3) for each in found] for kind, found in quiet.items()} == {
        "kill": [6.0],
        "pause": [29.8],
    }

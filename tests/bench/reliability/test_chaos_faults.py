"""Faults: drawn from a seed, injected only when they count, and repaired by the supervisor."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import msgspec
from confluent_kafka.admin import AdminClient

from bench.reliability.chaos.faults import FaultInjector, InjectedFault, quiet_after_s
from bench.reliability.chaos.network import NetworkFaults
from bench.reliability.chaos.plan import (
    CHANGED,
    DELAY_S,
    NETWORK_SHARES,
    OF_BROKERS,
    REQUESTS,
    STATE_SHARES,
    Kind,
    PlannedFault,
    in_transaction_min,
    interleaved,
    kind_counts,
    plan_faults,
)
from bench.reliability.chaos.states import StateFaults
from bench.reliability.chaos.supervisor import ProcessSupervisor, SupervisedProcess
from carpool.errors import RetryableError
from carpool.kafka.settings import KafkaSettings
from carpool.testing.transactions import DescribedTransaction

MEMBERS = ["grouper-1", "grouper-2", "searcher-1"]
BROKERS = ["broker-1", "broker-2", "broker-3"]
OPEN = DescribedTransaction(state="Ongoing", topics=("rag.groups.v1", "__consumer_offsets"))
ENDED = DescribedTransaction(state="CompleteCommit", topics=())


def plan(seed: int) -> tuple[PlannedFault, ...]:
    return plan_faults(60, duration_s=600, seed=seed, members=MEMBERS, brokers=BROKERS)


def test_a_plan_is_drawn_from_its_seed_and_spreads_every_kind_over_the_run() -> None:
    found = plan(3)
    assert found == plan(3)
    assert found != plan(4)
    kinds = Counter(fault.kind for fault in found)
    assert kinds == kind_counts(60)
    assert kinds["kill in a transaction"] >= in_transaction_min(60) == 10
    times = [fault.at_s for fault in found]
    assert times == sorted(times)
    assert times[0] < 60
    assert 480 < times[-1] < 600, "recovery from the last fault is in the run"
    for fault in found:
        assert set(fault.victims) == set(BROKERS if fault.kind in OF_BROKERS else MEMBERS)


def test_network_faults_are_drawn_too_and_come_between_the_others() -> None:
    found = plan_faults(
        60, shares=NETWORK_SHARES, duration_s=600, seed=3, members=MEMBERS, brokers=BROKERS
    )
    assert Counter(fault.kind for fault in found) == kind_counts(60, NETWORK_SHARES)
    for fault in found:
        assert set(fault.victims) == set(BROKERS)
        assert (fault.request in REQUESTS) == (fault.kind == "lost reply")
        assert (DELAY_S[0] <= fault.delay_s <= DELAY_S[1]) == (fault.kind == "slow network")
    assert {fault.request for fault in found} == {"", *REQUESTS}
    both = interleaved(plan(3), found)
    times = [fault.at_s for fault in both]
    assert times == sorted(times)
    assert len(both) == 120


def test_changes_of_the_deployment_are_drawn_and_a_group_is_deleted_late() -> None:
    found = plan_faults(
        40, shares=STATE_SHARES, duration_s=600, seed=3, members=["llm-1"], brokers=BROKERS
    )
    assert Counter(fault.kind for fault in found) == kind_counts(40, STATE_SHARES)
    for fault in found:
        assert set(fault.victims) == set(CHANGED.get(fault.kind, ["llm-1"]))
        is_late = fault.kind in ("delete a group", "remove records")
        assert fault.at_s >= 420 or not is_late
    assert [fault.at_s for fault in found] == sorted(fault.at_s for fault in found)


def test_the_kinds_add_up() -> None:
    for count in range(1, 70):
        counts = kind_counts(count)
        assert sum(counts.values()) == count
        assert counts["kill in a transaction"] >= in_transaction_min(count) - 1


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
    """A run; `transactions`: what the coordinator says, one look after another."""

    now: float = 100.0
    sent: int = 10
    answers: int = 5
    work: dict[str, int] = field(default_factory=dict)
    transactions: list[DescribedTransaction | None] = field(default_factory=list)
    is_whole: bool = True

    def now_s(self) -> float:
        return self.now

    def published(self) -> int:
        return self.sent

    def answered(self) -> int:
        return self.answers

    def in_flight(self, member: str) -> int:
        return self.work.get(member, 0)

    def transaction(self, member: str) -> DescribedTransaction | None:
        return self.transactions.pop(0) if self.transactions else None

    def brokers_are_whole(self) -> bool:
        return self.is_whole


def supervised(*more: str) -> tuple[ProcessSupervisor, dict[str, FakeProcess]]:
    processes = {name: FakeProcess() for name in (*MEMBERS, *BROKERS, *more)}
    found = {
        name: SupervisedProcess(name=name, process=process, start=process.start, is_up=lambda: True)
        for name, process in processes.items()
    }
    return ProcessSupervisor(found), processes


def a_fault(kind: Kind, *victims: str, at_s: float = 1.0) -> PlannedFault:
    return PlannedFault(at_s=at_s, kind=kind, victims=victims, down_s=2.0)


def injector(
    run: FakeRun,
    *faults: PlannedFault,
    network: NetworkFaults | None = None,
    stand_ins: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[FaultInjector, dict[str, FakeProcess]]:
    supervisor, processes = supervised()
    return (
        FaultInjector(
            list(faults),
            supervisor,
            network or NetworkFaults({}),
            StateFaults(AdminClient({}), KafkaSettings(), supervisor, stand_ins),
            run,
            random.Random(0),
            sleep=lambda _: None,
        ),
        processes,
    )


def test_a_kill_hits_the_first_victim_with_work_in_flight() -> None:
    run = FakeRun(work={"searcher-1": 3}, transactions=[ENDED])
    faults, processes = injector(run, a_fault("kill", "grouper-1", "searcher-1"))
    faults.step()
    assert processes["grouper-1"].log == []
    assert processes["searcher-1"].log == ["pause", "kill"]
    (found,) = faults.injected
    assert (found.victim, found.in_flight, found.is_in_transaction) == ("searcher-1", 3, False)


def test_a_fault_needs_work_in_flight_and_an_answer_since_the_last_fault() -> None:
    run = FakeRun(work={"grouper-1": 1})
    faults, _ = injector(run, a_fault("kill", "grouper-1"), a_fault("kill", "grouper-2"))
    faults.step()
    assert len(faults.injected) == 1
    run.work["grouper-2"] = 1
    faults.step()
    assert len(faults.injected) == 1, "no answer since"
    run.answers += 1
    faults.step()
    assert len(faults.injected) == 2
    run.answers, run.work = run.sent, {"grouper-1": 1}
    faults.pending.append(a_fault("kill", "grouper-1"))
    faults.step()
    assert len(faults.injected) == 2, "all is answered"


def test_a_kill_in_a_transaction_resumes_the_victim_until_the_transaction_is_open() -> None:
    run = FakeRun(work={"grouper-1": 1})
    faults, processes = injector(run, a_fault("kill in a transaction", "grouper-1"))
    faults.step()
    log = processes["grouper-1"].log
    assert (faults.injected, len(faults.pending), log[-1]) == ([], 1, "resume"), "never open"
    log.clear()
    run.transactions = [None, ENDED, OPEN]
    faults.step()
    assert log == ["pause", "resume", "pause", "resume", "pause", "kill"]
    (found,) = faults.injected
    assert found.is_in_transaction
    assert found.transaction is not None
    assert found.transaction.holds_offsets


def test_an_llm_server_is_killed_with_requests_in_flight_and_is_not_paused_before() -> None:
    supervisor, processes = supervised("llm-1", "llm-2")
    run = FakeRun(work={"llm-2": 1})
    fault = a_fault("kill an LLM server", "llm-1", "llm-2")
    states = StateFaults(AdminClient({}), KafkaSettings(), supervisor, {})
    faults = FaultInjector([fault], supervisor, NetworkFaults({}), states, run, random.Random(0))
    faults.step()
    assert (processes["llm-1"].log, processes["llm-2"].log) == ([], ["kill"])
    (found,) = faults.injected
    assert (found.victim, found.in_flight, found.transaction) == ("llm-2", 1, None)


def test_a_broker_is_hit_when_all_have_every_copy_and_other_faults_go_before_it() -> None:
    run = FakeRun(work={"grouper-1": 1}, is_whole=False)
    faults, processes = injector(
        run, a_fault("kill a broker", "broker-2"), a_fault("pause", "grouper-1", at_s=2.0)
    )
    faults.step()
    assert [each.kind for each in faults.injected] == ["pause"]
    run.is_whole, run.answers = True, 6
    faults.step()
    assert processes["broker-2"].log == ["kill"]
    assert faults.pending == []


@dataclass
class FakeProxy:
    log: list[str] = field(default_factory=list)
    has_requests: bool = True

    def delay(self, seconds: float) -> None:
        self.log.append(f"delay {seconds:g}")

    def cut(self) -> None:
        self.log.append("cut")

    @contextmanager
    def half_open(self) -> Iterator[None]:
        self.log.append("half-open")
        yield
        self.log.append("whole")

    def hold(self, api_key: int) -> FakeProxy:
        self.log.append(f"hold {api_key}")
        return self

    drop_reply = hold

    def wait(self, timeout_s: float) -> bool:
        return self.has_requests

    def release(self) -> None:
        self.log.append("release")

    cancel = release


def network_of(**proxies: FakeProxy) -> NetworkFaults:
    found: dict[str, Any] = {name.replace("_", "-"): each for name, each in proxies.items()}
    return NetworkFaults(found)


def test_a_network_fault_ends_in_time_and_no_broker_is_hit_meanwhile() -> None:
    run, proxy = FakeRun(), FakeProxy()
    network = network_of(broker_1=proxy)
    faults, _ = injector(
        run,
        a_fault("half-open", "broker-1"),
        a_fault("kill a broker", "broker-2"),
        network=network,
    )
    faults.step()
    assert [(each.victim, each.in_flight) for each in faults.injected] == [("broker-1", 5)]
    run.answers += 1
    faults.step()
    assert len(faults.injected) == 1, "the network is not whole"
    network.step(101.0)
    assert proxy.log == ["half-open"]
    network.step(102.0)
    assert proxy.log == ["half-open", "whole"]
    faults.step()
    assert len(faults.injected) == 2


@dataclass
class FakeStandIn:
    log: list[str] = field(default_factory=list)
    answers: bool = True

    def answer_as(self, mode: str) -> None:
        if not self.answers:
            raise RetryableError("it does not answer")
        self.log.append(mode)


def test_a_change_needs_all_whole_and_its_end_is_tried_until_it_succeeds() -> None:
    run, llm = FakeRun(is_whole=False), FakeStandIn(answers=False)
    odd = a_fault("odd LLM server", "llm-1")
    faults, _ = injector(run, odd, stand_ins={"llm-1": llm})
    faults.step()
    run.is_whole = True
    faults.step()
    assert (faults.injected, faults.pending) == ([], [odd]), "it cannot be told"
    llm.answers = True
    faults.step()
    assert [(each.victim, each.in_flight) for each in faults.injected] == [("llm-1", 5)]
    llm.answers = False
    faults.states.step(102.0)
    llm.answers = True
    faults.states.end_all()
    assert llm.log == ["odd", "none"]
    assert faults.states.is_whole


def test_a_group_is_deleted_while_its_members_are_down_and_they_come_back_then() -> None:
    faults, processes = injector(FakeRun(), a_fault("delete a group", "grouper"))
    faults.step()
    assert [processes[name].log for name in MEMBERS] == [["kill"], ["kill"], []]
    assert not faults.states.is_whole
    faults.supervisor.step(1_000.0)
    assert processes["grouper-1"].log == ["kill"], "it waits for the end of the group"


def test_a_slow_network_delays_every_broker() -> None:
    proxies = {"broker_1": FakeProxy(), "broker_2": FakeProxy()}
    network = network_of(**proxies)
    fault = a_fault("slow network", "broker-2")
    assert network.inject(msgspec.structs.replace(fault, delay_s=0.1), 0.0) == "all brokers"
    network.end_all()
    assert [proxy.log for proxy in proxies.values()] == [["delay 0.1", "delay 0"]] * 2


def test_the_end_of_a_transaction_is_held_at_the_first_broker_that_gets_one() -> None:
    idle, busy = FakeProxy(has_requests=False), FakeProxy()
    network = network_of(broker_1=idle, broker_2=busy)
    fault = a_fault("late end of a transaction", "broker-1", "broker-2")
    assert network.inject(fault, 10.0) == "broker-2"
    assert idle.log == ["hold 26", "release"], "it holds nothing later"
    assert busy.log == ["hold 26", "cut"], "the client sends it again"
    network.step(14.0)
    assert busy.log == ["hold 26", "cut", "release"]


def test_a_lost_reply_that_never_came_is_no_fault() -> None:
    idle = FakeProxy(has_requests=False)
    lost = msgspec.structs.replace(a_fault("lost reply", "broker-1"), request="Produce")
    faults, _ = injector(FakeRun(), lost, network=network_of(broker_1=idle))
    faults.step()
    assert (faults.injected, faults.pending) == ([], [lost])
    assert idle.log == ["hold 0", "release"]


def test_the_supervisor_restarts_and_resumes_in_time() -> None:
    supervisor, processes = supervised()
    processes["grouper-1"].kill()
    supervisor.note("grouper-1", "dead", 10.0, 2.0)
    processes["broker-1"].pause()
    supervisor.note("broker-1", "paused", 10.0, 5.0)
    supervisor.step(11.0)
    assert not supervisor.is_up("grouper-1")
    supervisor.step(12.0)
    supervisor.step(12.5)
    assert supervisor.is_up("grouper-1")
    assert not supervisor.all_up()
    supervisor.step(15.0)
    supervisor.step(15.0)
    assert processes["broker-1"].log == ["pause", "resume"]
    assert supervisor.all_up()
    assert supervisor.back_after_s == {"grouper-1": [2.5], "broker-1": [5.0]}
    assert supervisor.exits == []


def test_a_process_that_ends_by_itself_is_noted_and_restarted() -> None:
    supervisor, processes = supervised()
    processes["searcher-1"].is_running = False
    supervisor.step(3.0)
    assert [(each.name, each.at_s) for each in supervisor.exits] == [("searcher-1", 3.0)]
    supervisor.step(4.0)
    supervisor.step(4.1)
    assert processes["searcher-1"].log == ["start"]
    assert supervisor.is_up("searcher-1")


def test_the_quiet_time_after_a_fault_ends_with_the_next_fault() -> None:
    def at(at_s: float, kind: Kind) -> InjectedFault:
        return InjectedFault(at_s=at_s, kind=kind, victim="x", down_s=0, in_flight=1, answers=0)

    answers_s = [9.0, 10.5, 14.0, 20.1, 20.2, 60.0]
    quiet = quiet_after_s([at(10, "kill"), at(20, "pause")], answers_s)
    assert {kind: [round(each, 3) for each in found] for kind, found in quiet.items()} == {
        "kill": [6.0],
        "pause": [29.8],
    }

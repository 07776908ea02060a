"""The load and the faults of a chaos run: drawn from a seed, of every kind, and when they count."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import NewTopic

from bench.data.made_up import made_up_index
from bench.reliability.chaos.check_answer import NAMES
from bench.reliability.chaos.coordinators import CoordinatorsAndLeaders
from bench.reliability.chaos.faults import FaultInjector, InjectedFault, quiet_after_s
from bench.reliability.chaos.files import DeployedFiles
from bench.reliability.chaos.llm_calls import calls_of
from bench.reliability.chaos.load import with_headers
from bench.reliability.chaos.network import NetworkFaults
from bench.reliability.chaos.plan import KINDS, PlannedFault, kind_counts, plan_faults, shares_of
from bench.reliability.chaos.questions import ALWAYS, FAILS_AT_FIRST, WORD, chaos_questions
from bench.reliability.chaos.states import StateFaults
from bench.reliability.chaos.supervisor import ProcessSupervisor, SupervisedProcess
from bench.reliability.fault_proxy import PRODUCE, FaultProxy
from carpool.disk.manifest import read_manifest
from carpool.errors import RetryableError
from carpool.kafka.cluster import quiet_admin
from carpool.kafka.settings import KafkaSettings
from carpool.testing.llm_api import LlmRequests
from carpool.workflow.load import load_programs
from producers.read_questions import Question
from schemas.headers import DEADLINE_HEADER, TENANT_HEADER
from tests.waiting import WAIT_S

GIVEN = [Question(text=f"what of {number}", vector=bytes(4)) for number in range(4_000)]
VICTIMS = {
    "members": ["grouper-1", "searcher-1"],
    "brokers": ["broker-1"],
    "LLM servers": ["llm"],
    "indexers": ["indexer-1"],
    "searchers": ["searcher-1"],
}


def test_the_questions_are_drawn_from_the_seed_and_have_both_classes_and_all_kinds() -> None:
    found = chaos_questions(GIVEN, 1, workflow_share=0.1)
    assert found == chaos_questions(GIVEN, 1, workflow_share=0.1)
    assert found != chaos_questions(GIVEN, 2, workflow_share=0.1)
    assert len(found) == len(GIVEN)
    assert 0.2 < sum(each.is_batch for each in found) / len(GIVEN) < 0.3
    asked = {each.id: each for each in found}
    assert 0.03 < 1 - len(asked) / len(GIVEN) < 0.07, "some ids are asked again"
    assert all(each == asked[each.id] for each in found)
    programs = Counter(each.workflow for each in asked.values())
    assert 0.07 < 1 - programs.pop(None) / len(asked) < 0.13
    assert programs.keys() == set(NAMES)
    assert all(bool(each.fails) == bool(WORD.findall(each.text)) for each in found)
    fails = Counter(each.fails for each in asked.values())
    assert fails.keys() == {0, FAILS_AT_FIRST, ALWAYS} and 5 < fails[ALWAYS] < 50
    repeats = [each for id, each in asked.items() if each.row != int(id[2:])]
    assert 0.15 < len(repeats) / len(asked) < 0.25
    assert all(each.text == GIVEN[each.row].text for each in repeats)
    withdrawn = [each for each in asked.values() if each.is_withdrawn]
    assert 0.03 < len(withdrawn) / len(asked) < 0.07
    assert not any(each.fails for each in withdrawn)
    for each in chaos_questions(GIVEN, 1, is_plain=True):
        assert not (each.fails or each.is_withdrawn or each.workflow)
        assert each.row == int(each.id[2:])


def test_every_question_has_headers_of_its_own_and_some_have_a_deadline() -> None:
    asked, record_of = chaos_questions(GIVEN[:400], 1), with_headers(embedding_model="any")
    headers = [dict(record_of(each, 0).headers) for each in asked]
    for name in ("correlation_id", "reply_to"):
        assert len({each[name] for each in headers}) == len(asked), "also those of one id"
    assert {each.get(TENANT_HEADER) for each in headers} == {None, b"north", b"south"}
    late = [each for each in asked if each.deadline_ms is not None]
    assert sum(DEADLINE_HEADER in each for each in headers) == len(late) > 3
    assert not any(each.fails for each in late)


def test_faults_are_drawn_from_the_seed_and_every_kind_is_spread_over_the_run() -> None:
    for sort in {each.sort for each in KINDS.values()}:
        found, same, other = (
            plan_faults(60, shares_of(sort), duration_s=600, seed=seed, victims=VICTIMS)
            for seed in (3, 3, 4)
        )
        assert found == same != other
        counts = Counter(fault.kind for fault in found)
        assert counts == kind_counts(60, shares_of(sort)) and counts.total() == 60
        times = [fault.at_s for fault in found]
        assert times == sorted(times) and times[0] < 60
        assert 480 < times[-1] < 600, "recovery from the last fault is in the run"
        for fault in found:
            hits = KINDS[fault.kind].hits
            assert set(fault.victims) == set(VICTIMS[hits] if isinstance(hits, str) else hits)
            assert fault.at_s >= 420 or not KINDS[fault.kind].is_late


@pytest.fixture
def files(tmp_path: Path) -> DeployedFiles:
    indexes = made_up_index(tmp_path), made_up_index(tmp_path, name="other", nlist=8)
    return DeployedFiles(tmp_path, [each.dir for each in indexes])


class FakeProcess:
    """Logs what is done to it."""

    def __init__(self) -> None:
        self.log: list[str] = []

    @property
    def is_running(self) -> bool:
        return self.log[-1:] != ["kill"]

    def __getattr__(self, name: str) -> Any:
        return partial(self.log.append, name)


@dataclass
class FakeRun:
    """A run; `transactions`: whether one has records, one look after another."""

    supervisor: ProcessSupervisor
    answers: int = 5
    network: NetworkFaults = field(default_factory=lambda: NetworkFaults(print, {}))
    states: NetworkFaults = field(default_factory=lambda: NetworkFaults(print, {}))
    work: dict[str, int] = field(default_factory=dict)
    transactions: list[bool] = field(default_factory=list)
    saves: list[str | None] = field(default_factory=list)
    is_swapping: bool = False

    @property
    def bases(self) -> FakeRun:
        return self

    def saver(self) -> str | None:
        return self.saves.pop(0) if self.saves else None

    def are_swapping(self) -> bool:
        return self.is_swapping

    def now_s(self) -> float:
        return 100.0

    def published(self) -> int:
        return 10

    def answered(self) -> int:
        return self.answers

    def in_flight(self, member: str) -> int:
        return self.work.get(member, 0)

    def has_open_transaction(self, member: str, *, with_records: bool) -> bool:
        return bool(self.transactions) and self.transactions.pop(0)

    def brokers_are_whole(self) -> bool:
        return True


def supervised() -> tuple[ProcessSupervisor, dict[str, FakeProcess]]:
    processes = {name: FakeProcess() for names in VICTIMS.values() for name in names}
    found = {
        name: SupervisedProcess(process=process, start=process.start, is_up=lambda: True)
        for name, process in processes.items()
    }
    return ProcessSupervisor(found), processes


def a_fault(kind: str, *victims: str) -> PlannedFault:
    return PlannedFault(at_s=1.0, kind=kind, victims=victims, down_s=2.0)


def injector(run: Any, *faults: PlannedFault) -> FaultInjector:
    return FaultInjector(list(faults), run, random.Random(0), sleep=lambda _: None)


def test_a_fault_needs_work_in_flight_and_an_answer_since_the_last_fault() -> None:
    supervisor, processes = supervised()
    run = FakeRun(supervisor, work={"searcher-1": 3}, transactions=[False])
    faults = injector(run, a_fault("kill", "grouper-1", "searcher-1"), a_fault("kill", "grouper-1"))
    faults.step()
    (found,) = faults.injected
    assert (found.victim, found.in_transaction) == ("searcher-1", False)
    assert not processes["grouper-1"].log
    run.work = {"grouper-1": 1}
    faults.step()
    assert len(faults.injected) == 1, "no answer since"
    run.answers += 1
    faults.step()
    assert len(faults.injected) == 2


def test_a_kill_in_a_transaction_resumes_the_victim_until_its_transaction_has_records() -> None:
    supervisor, processes = supervised()
    run = FakeRun(supervisor, work={"grouper-1": 1})
    faults = injector(run, a_fault("kill in a transaction", "grouper-1"))
    faults.step()
    log = processes["grouper-1"].log
    assert (faults.injected, len(faults.pending), log[-1]) == ([], 1, "resume"), "never in one"
    log.clear()
    run.transactions = [False, False, True]
    faults.step()
    assert log[:5] == ["pause", "resume", "pause", "resume", "pause"] and log[-1] == "kill"
    assert [each.in_transaction for each in faults.injected] == [True]


def test_a_kill_at_a_base_waits_for_a_save_or_a_swap() -> None:
    supervisor, processes = supervised()
    run = FakeRun(supervisor)
    faults = injector(run, a_fault("kill in a save", "indexer-1"))
    faults.step()
    assert not faults.injected
    run.saves = [None, "indexer-1"]
    faults.pending.append(a_fault("kill in a swap", "searcher-1"))
    faults.step()
    run.answers += 1
    faults.step()
    assert [each.victim for each in faults.injected] == ["indexer-1"], "no swap yet"
    run.is_swapping = True
    faults.step()
    assert [each.victim for each in faults.injected] == ["indexer-1", "searcher-1"]
    assert processes["indexer-1"].log == processes["searcher-1"].log == ["kill"]


@pytest.mark.kafka
def test_a_transaction_is_open_before_it_has_records(fault_proxy: FaultProxy) -> None:
    kafka = KafkaSettings(bootstrap=fault_proxy.bootstrap)
    name, brokers, admin = f"t-{uuid4().hex[:8]}", CoordinatorsAndLeaders(kafka), quiet_admin(kafka)
    admin.create_topics([NewTopic(name, 1)])[name].result(10)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": name})
    producer.init_transactions()
    assert not brokers.is_open(name, with_records=False)
    producer.begin_transaction()
    held = fault_proxy.hold(PRODUCE)
    producer.produce(name, b"value")
    assert held.wait(WAIT_S)
    assert brokers.is_open(name, with_records=False)
    assert not brokers.is_open(name, with_records=True)
    held.release()
    producer.flush()
    assert brokers.is_open(name, with_records=True)
    producer.abort_transaction()
    assert not brokers.is_open(name, with_records=False)
    brokers.close()


def test_the_quiet_time_after_a_fault_ends_with_the_next_fault() -> None:
    def at(at_s: float, kind: str) -> InjectedFault:
        return InjectedFault(at_s=at_s, kind=kind, victim="x", answers=0, in_transaction=False)

    answers_s = [9.0, 10.5, 14.0, 20.1, 20.2, 60.0]
    quiet = quiet_after_s([at(10, "kill"), at(20, "pause")], answers_s)
    assert quiet == {"kill": [6.0], "pause": [pytest.approx(29.8)]}


def test_warm_ups_are_no_calls_and_calls_of_killed_stand_ins_are_added() -> None:
    ids = {"a": 1, "b": 2, "a/warm-up": 3, "carpool/canary": 4}
    done = {"a": 1, "a/warm-up": 2, "carpool/canary": 4}
    requests = LlmRequests(
        started=10, faulted=1, started_by_id=Counter(ids), completed_by_id=Counter(done)
    )
    found = calls_of(requests)
    assert found == {"started": 3, "faulted": 1, "warm_ups": 2}
    assert found + found == {"started": 6, "faulted": 2, "warm_ups": 4}


@dataclass
class FakeStandIn:
    log: list[str] = field(default_factory=list)
    answers: bool = True

    def answer_as(self, mode: str) -> None:
        if not self.answers:
            raise RetryableError("it does not answer")
        self.log.append(mode)


def test_the_end_of_a_change_is_tried_until_it_succeeds_and_says_once_why_it_does_not(
    files: DeployedFiles,
) -> None:
    llm, notes, stand_ins = FakeStandIn(), list[str](), dict[str, Any]()
    stand_ins["llm-1"] = llm
    states = StateFaults(notes.append, KafkaSettings(), supervised()[0], stand_ins, files)
    assert states.inject(a_fault("odd LLM server", "llm-1"), 100.0) == "llm-1"
    llm.answers = False
    states.step(102.0)
    states.step(103.0)
    assert not states.is_whole
    assert notes == ["102 s: a fault cannot be ended yet: RetryableError: it does not answer"]
    llm.answers = True
    states.step(104.0)
    assert states.is_whole and llm.log == ["odd", "none"]


def test_services_open_the_other_index_and_program_after_a_change(files: DeployedFiles) -> None:
    first = files.index.resolve()
    before = load_programs(str(files.programs))
    for is_first in (False, True):
        files.change_index()
        assert (files.index.resolve() == first) == is_first
        read_manifest(files.index)
    files.change_programs()
    after = load_programs(str(files.programs))
    assert set(after) - set(before) == {("side_by_side", 2)}
    digests = {key: each.digest for key, each in after.items() if key in before}
    assert digests == {key: each.digest for key, each in before.items()}, "workflows go on"


def test_new_generators_come_before_groupers_and_a_new_index_to_one_member_of_each_first(
    files: DeployedFiles,
) -> None:
    for kind, services, first in (
        ("newer program", ("grouper", "generator"), {"generator-1", "generator-2"}),
        ("newer index", ("searcher", "grouper"), {"grouper-1", "searcher-1"}),
    ):
        processes = {f"{name}-{number}": FakeProcess() for name in services for number in (1, 2)}
        supervisor = ProcessSupervisor(
            {
                name: SupervisedProcess(process=each, start=each.start, is_up=lambda: True)
                for name, each in processes.items()
            }
        )
        states = StateFaults(print, KafkaSettings(), supervisor, {}, files)
        assert states.inject(a_fault(kind, *services), 100.0) == services[0]
        assert {name for name, each in processes.items() if "kill" in each.log} == first
        states.step(102.0)
        assert all("kill" in each.log for each in processes.values())


@pytest.mark.kafka
def test_the_members_of_a_deleted_group_come_back_when_it_is_gone(
    kafka_bootstrap: str, files: DeployedFiles
) -> None:
    supervisor, members = supervised()[0], ["grouper-1", "grouper-2"]
    found = list(supervisor.processes.values())[: len(members)]
    supervisor.processes = dict(zip(members, found, strict=True))
    kafka = KafkaSettings(bootstrap=kafka_bootstrap, prefix=f"chaos-{uuid4().hex[:8]}.")
    states = StateFaults(print, kafka, supervisor, {}, files)
    topic, group, admin = f"{kafka.prefix}any", kafka.group_of("grouper"), quiet_admin(kafka)
    admin.create_topics([NewTopic(topic, 1)])[topic].result(10)
    member = Consumer({"bootstrap.servers": kafka_bootstrap, "group.id": group})
    member.subscribe([topic])
    until_s = time.monotonic() + 30
    while not member.assignment() and time.monotonic() < until_s:
        member.poll(0.1)
    assert states.inject(a_fault("delete a group", "grouper"), 100.0) == "grouper"
    states.step(108.0)
    supervisor.step(1_000.0)
    assert not any(supervisor.is_up(name) for name in supervisor.processes), "it has a member"
    member.close()
    states.step(109.0)
    assert states.is_whole
    supervisor.step(109.0)
    supervisor.step(110.0)
    assert supervisor.all_up()
    assert group not in {each.group_id for each in admin.list_consumer_groups().result(10).valid}

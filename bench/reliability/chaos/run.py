"""One chaos run: a cluster, two members of each service, a steady load, faults, the audit."""

from __future__ import annotations

import math
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from bench.core.kafka import fresh_folder, kafka_settings
from bench.core.spread import Spread, spreads
from bench.core.stack import SERVICES, Stack
from bench.core.topic_recorder import TOPIC_PATIENCE_S, TopicRecorder
from bench.data.index import BenchIndex
from bench.data.made_up import MODEL, NLIST, made_up_index
from bench.reliability.chaos.audit import INPUTS, READ, AuditResult, TopicAudit
from bench.reliability.chaos.base_watch import BaseWatch
from bench.reliability.chaos.check_answer import TOP_K
from bench.reliability.chaos.coordinators import CoordinatorsAndLeaders
from bench.reliability.chaos.document_audit import DocumentAudit, DocumentResult
from bench.reliability.chaos.document_load import DocumentLoad
from bench.reliability.chaos.document_truth import DocumentTruth
from bench.reliability.chaos.faults import FaultInjector, InjectedFault, quiet_after_s
from bench.reliability.chaos.files import DeployedFiles
from bench.reliability.chaos.live import BROKERS, LLM_SERVERS, STEP_S, LiveRun, supervised
from bench.reliability.chaos.llm_calls import LlmStandIn, break_on
from bench.reliability.chaos.load import LetterReplays, SteadyLoad
from bench.reliability.chaos.network import NetworkFaults
from bench.reliability.chaos.plan import MEMBERS, PlannedFault
from bench.reliability.chaos.questions import ALWAYS, TRIES_MAX, WORD, ChaosQuestion, passages_of
from bench.reliability.chaos.states import StateFaults
from bench.reliability.chaos.supervisor import ProcessSupervisor
from bench.reliability.fault_proxy import FaultProxy
from bench.reliability.slow_searcher import command as slow_searcher
from carpool.clock import SystemClock
from carpool.corpus.base_folders import bases_dir
from carpool.errors import RetryableError
from carpool.kafka.admin import create_topics
from carpool.kafka.cluster import cluster_metadata, quiet_admin
from carpool.kafka.embedded import free_port
from carpool.kafka.librdkafka.committed import committed_so_far
from carpool.kafka.records import Message, TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import TopicReader
from carpool.testing.kafka import KafkaCluster
from schemas.topics import ANSWERS, MESSAGE_BYTES_MAX
from searcher.passages.open import PASSAGE_BUFFERS_BYTES

NOTE_S = 5.0
STALLED_S, MUTANT_STALLED_S = 120.0, 40.0
"""Without an answer for so long, a run ends."""
SETTLE_S = 15.0
"""From the last answer to the look at the offsets: longer than a session of 6 s and a takeover."""
BACK_TIMEOUT_S = 60.0
READ_TIMEOUT_S = 120.0
START_TIMEOUT_S = 60.0
ENVIRONMENT = {"CARPOOL_EMBEDDING_MODEL": MODEL, "CARPOOL_LLM_TRIES_MAX": str(TRIES_MAX)}
"""Settings of the services: no embedding model, and an LLM that fails on some questions."""

DISK_BYTES_PER_S = 1_500_000
"""A search of 16 clusters takes 0.4 s at most, because the searches share their reads."""
DRAFTS = {
    "CARPOOL_SEARCHER_SEARCH_MODE": "exact",
    "CARPOOL_SEARCHER_DRAFTS_AFTER_MS": "20",
    "CARPOOL_SEARCHER_BUDGET_BYTES": str(PASSAGE_BUFFERS_BYTES + 256 * 1024),
    # A searcher that is stopped for longer than a read may take would give up that read.
    "CARPOOL_SEARCHER_READ_TIMEOUT_MS": "60000",
}
"""Settings with which searches from a slow disk send drafts, and LLM servers are warmed."""

WITH_INDEXER = (*SERVICES, "indexer")
FRESH_BYTES = 800_000
"""Of searchers with documents: a base is saved when half of them are full, after 120 changes."""

Note = Callable[[str], None]


class ChaosPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked and broken. `settings`: environment variables of the services.

    `changes_per_s`: of documents; 0: there are none. `wait_s_max`: the longest allowed time from a
    question to its answer; None: any. `packages`: of a mutant. Without a mutant there are two LLM
    servers, which say what they have cached, and, without documents, slow searches with drafts.
    """

    questions: tuple[ChaosQuestion, ...]
    faults: tuple[PlannedFault, ...]
    rate_per_s: float
    seed: int
    settings: dict[str, str]
    changes_per_s: float = 0.0
    wait_s_max: float | None = None
    packages: Path | None = None


class ChaosRun(msgspec.Struct, frozen=True, kw_only=True):
    """What happened. Times are seconds of the run.

    `exits`: processes that ended by themselves. `behind`: by how many offsets a group is behind the
    end of a partition. `calls`: of the LLM; `repeated`: beyond one for each generated answer
    and text of a step, and those that failed as the load wanted; `allowed`: of these, those of one
    second for each fault and each process that ended, and those of questions that were withdrawn.
    `quiet_after_s`: the longest time without an answer after a fault, by kind of fault.
    """

    took_s: float
    audit: AuditResult
    documents: DocumentResult
    injected: tuple[InjectedFault, ...]
    not_injected: tuple[PlannedFault, ...]
    faults: dict[str, int]
    kills_in_transaction: int
    exits: dict[str, int]
    open_at_end: tuple[str, ...]
    behind: dict[str, int]
    calls: dict[str, int]
    quiet_after_s: dict[str, Spread]


def run_chaos(index: BenchIndex, plan: ChaosPlan, *, folder: Path, note: Note) -> ChaosRun:
    """Runs it, and audits all topics. Blocks. Raises `CarpoolError` when the run itself failed."""
    with _live(index, plan, folder, note) as run:
        injector = FaultInjector(list(plan.faults), run, random.Random(plan.seed))
        run.begin()
        stalled_s = MUTANT_STALLED_S if plan.packages else STALLED_S
        took_s = _inject_until_answered(run, injector, stalled_s, note)
        sent = run.end_load()
        offsets = committed_offsets(run.kafka)
        run.stack.stop_services()
        calls = sum((each.calls() for each in run.stand_ins.values()), start=Counter[str]())
        open_at_end = run.open_transactions()
        note("reading every topic to its end")
        started_ms = int(run.started_s * 1_000)
        questions = (*plan.questions, *run.documents.asked)
        passages = passages_of(index)
        audit = TopicAudit(started_ms, questions, passages)
        documents = DocumentAudit(questions, DocumentTruth(passages))
        for record in records_of(run.kafka):
            audit.take(record)
            documents.take(record)
        found = audit.result(sent, run.states.removed, run.states.deleted_ms, offsets)
        injected, exits = injector.injected, run.supervisor.exits
        needed = found.generated + found.texts
        calls_per_s = plan.rate_per_s * needed / max(1, found.published)
        allowed = math.ceil(calls_per_s * (len(injected) + len(exits))) + found.unfinished
        repeated = calls["started"] - calls["faulted"] - needed
        records = run.recorder.records(ANSWERS.name)
        answers_s = [each.received_us / 1_000_000 - run.started_s for each in records]
        return ChaosRun(
            took_s=took_s,
            audit=found,
            documents=documents.result(run.documents.changed),
            injected=tuple(injected),
            not_injected=tuple(injector.pending),
            faults=dict(sorted(Counter(each.kind for each in injected).items())),
            kills_in_transaction=sum(
                each.in_transaction and each.kind.startswith("kill") for each in injected
            ),
            exits=Counter(exits),
            open_at_end=open_at_end,
            behind=audit.behind(offsets),
            calls={**calls, "repeated": repeated, "allowed": allowed},
            quiet_after_s=spreads(quiet_after_s(injected, answers_s)),
        )


@contextmanager
def _live(index: BenchIndex, plan: ChaosPlan, folder: Path, note: Note) -> Iterator[LiveRun]:
    """Yields a run that has not begun: brokers behind proxies, services, LLM servers."""
    with ExitStack() as opened:
        data = opened.enter_context(fresh_folder(folder / "kafka"))
        ports = [free_port() for _ in BROKERS]
        cluster = KafkaCluster(data, advertised=ports)
        proxies = {
            name: opened.enter_context(FaultProxy(port, server.port))
            for name, port, server in zip(BROKERS, ports, cluster.servers, strict=True)
        }
        opened.enter_context(cluster)
        kafka = kafka_settings(plan.settings, bootstrap=cluster.bootstrap)
        make_topics(kafka)
        sockets = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="carpool-")))
        other = made_up_index(folder, name="other-index", nlist=NLIST - 4)
        files = DeployedFiles(folder, (index.dir, other.dir))
        stack = opened.enter_context(_stack(kafka, plan, folder, files, sockets))
        stand_ins = {name: LlmStandIn(stack[name]) for name in stack.llm_names}
        llm = tuple(stand_ins.values())
        failing = [each for each in plan.questions if each.fails]
        break_on(llm, {WORD.findall(each.text)[0]: each.fails for each in failing})
        supervisor = ProcessSupervisor(dict(supervised(stack, cluster, stand_ins)))
        direct = msgspec.structs.replace(kafka, bootstrap=cluster.own_addresses)
        recorder = TopicRecorder(kafka, [ANSWERS.name], SystemClock())
        yield LiveRun(
            cluster=cluster,
            kafka=kafka,
            stack=stack,
            supervisor=supervisor,
            network=NetworkFaults(note, proxies),
            states=StateFaults(note, direct, supervisor, stand_ins, files),
            coordinators=CoordinatorsAndLeaders(
                KafkaSettings(bootstrap=cluster.own_addresses, request_timeout_ms=2_000)
            ),
            recorder=opened.enter_context(recorder),
            stand_ins=stand_ins,
            load=SteadyLoad(
                kafka,
                plan.questions,
                {"embedding_model": index.manifest.embedding_model, "top_k": TOP_K},
                rate_per_s=plan.rate_per_s,
                seed=plan.seed,
            ),
            documents=DocumentLoad(
                kafka, plan.changes_per_s, len(plan.questions) / plan.rate_per_s, plan.seed
            ),
            bases=BaseWatch(bases_dir(files.index), stack),
            replays=LetterReplays(kafka, lambda words: break_on(llm, dict.fromkeys(words, 0))),
            dead={each.id for each in failing if each.fails == ALWAYS},
        )


def _stack(
    kafka: KafkaSettings, plan: ChaosPlan, folder: Path, files: DeployedFiles, sockets: Path
) -> Stack:
    own = ENVIRONMENT | {"CARPOOL_WORKFLOW_MODULES": str(files.programs)}
    more: dict[str, Any] = {"python_path": plan.packages}
    if plan.packages is None:
        more = {"kv_folder": sockets, "llm_servers": len(LLM_SERVERS)}
    if plan.changes_per_s:
        own |= {"CARPOOL_SEARCHER_FRESH_BYTES": str(FRESH_BYTES)}
        more["services"] = WITH_INDEXER
    elif plan.packages is None:
        own |= DRAFTS
        more["commands"] = {"searcher": slow_searcher(DISK_BYTES_PER_S)}
    return Stack(
        bootstrap=kafka.bootstrap,
        index_dir=files.index,
        work_dir=folder,
        members=MEMBERS,
        settings=own | plan.settings,
        llm_options=("--latency-ms", "100"),
        **more,
    )


def make_topics(kafka: KafkaSettings) -> None:
    """Makes the topics when all brokers are there: else they have fewer copies."""
    until_s = time.monotonic() + START_TIMEOUT_S
    admin = quiet_admin(kafka)
    while len(cluster_metadata(admin, kafka, START_TIMEOUT_S).brokers) < len(BROKERS):
        if time.monotonic() > until_s:
            raise RetryableError("not all brokers have joined the cluster")
        time.sleep(STEP_S)
    create_topics(kafka)


def _inject_until_answered(
    run: LiveRun, injector: FaultInjector, stalled_s: float, note: Note
) -> float:
    """Injects faults until all is answered, or no answer came for `stalled_s`; returns the time."""
    answered, since_s, next_note_s = 0, run.now_s(), 0.0
    while not run.is_done() and run.now_s() - since_s < stalled_s:
        injector.step()
        run.step()
        if run.answered() > answered:
            answered, since_s = run.answered(), run.now_s()
        if run.now_s() >= next_note_s:
            next_note_s = run.now_s() + NOTE_S
            note(run.status(len(injector.injected)))
    took_s = run.now_s()
    for faults in (run.network, run.states):
        faults.step(math.inf)
    while not run.supervisor.all_up() and run.now_s() - took_s < BACK_TIMEOUT_S:
        run.step()
    time.sleep(SETTLE_S)  # for records that come twice, and for the last commits
    return took_s


def committed_offsets(kafka: KafkaSettings) -> dict[TopicPartition, int]:
    """Returns the committed offset of every partition that a service reads. Blocks."""
    found: dict[TopicPartition, int] = {}
    known = cluster_metadata(quiet_admin(kafka), kafka, READ_TIMEOUT_S).topics
    for service, topics in INPUTS.items():
        partitions = [
            TopicPartition(name, number) for name in topics for number in known[name].partitions
        ]
        committed = committed_so_far(kafka, kafka.group_of(service), partitions)
        found |= {at: raw.offset for at, raw in committed.items()}
    return found


def records_of(kafka: KafkaSettings) -> Iterator[Message]:
    """Yields all records of every topic, to the end that a reader of committed records sees."""
    config = {"fetch.message.max.bytes": MESSAGE_BYTES_MAX}
    with TopicReader(
        kafka, SystemClock(), name="bench-audit", timeout_s=READ_TIMEOUT_S, config=config
    ) as reader:
        places = [
            at for topic in READ for at in reader.partitions(topic, patience_s=TOPIC_PATIENCE_S)
        ]
        yield from reader.read_to_end(places)

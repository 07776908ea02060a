"""One chaos run: a cluster, two members of each service, a steady load, faults, the audit."""

from __future__ import annotations

import math
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
from confluent_kafka import KafkaException

from bench.core.kafka import fresh_folder, kafka_settings
from bench.core.stack import Stack
from bench.core.topic_recorder import TOPIC_PATIENCE_S, TopicRecorder
from bench.data.index import BenchIndex
from bench.data.made_up import MODEL
from bench.reliability.chaos.answer_audit import AnswerAudit
from bench.reliability.chaos.asked import AskedQuestions
from bench.reliability.chaos.audit import INPUTS, TOPICS, AuditResult, TopicAudit
from bench.reliability.chaos.faults import FaultInjector, InjectedFault
from bench.reliability.chaos.live import STEP_S, LiveRun, broker_names, members
from bench.reliability.chaos.llm_calls import LlmCalls, LlmStandIn, break_on, calls_of
from bench.reliability.chaos.load import LetterReplays, SteadyLoad, Withdrawals
from bench.reliability.chaos.network import NetworkFaults, proxied_cluster
from bench.reliability.chaos.plan import MEMBERS, PlannedFault
from bench.reliability.chaos.questions import TRIES_MAX
from bench.reliability.chaos.supervisor import UnplannedExit
from bench.reliability.slow_searcher import command as slow_searcher
from carpool.clock import SystemClock
from carpool.errors import RetryableError
from carpool.kafka.admin import create_topics
from carpool.kafka.cluster import cluster_metadata, quiet_admin
from carpool.kafka.fencing import transactional_id
from carpool.kafka.librdkafka.committed import committed_so_far
from carpool.kafka.librdkafka.transactional import LibrdkafkaTransactionalProducer
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import TopicReader
from producers.read_questions import Question
from schemas.topics import ANSWERS, MESSAGE_BYTES_MAX
from searcher.passages.open import PASSAGE_BUFFERS_BYTES

BROKERS = 3
NOTE_S = 5.0
STALLED_S = 120.0
SETTLE_S = 15.0
"""From the last answer to the look at the offsets: longer than a session of 6 s and a takeover."""
BACK_TIMEOUT_S = 60.0
READ_TIMEOUT_S = 120.0
START_TIMEOUT_S = 60.0
LLM_LATENCY_MS = 100
ENVIRONMENT = {
    "CARPOOL_EMBEDDING_MODEL": MODEL,
    "CARPOOL_LLM_TRIES_MAX": str(TRIES_MAX),
    # The stand-in fails on single questions. It need not be spared.
    "CARPOOL_LLM_BACKOFF_MS_MIN": "20",
    "CARPOOL_LLM_BACKOFF_MS_MAX": "200",
    "CARPOOL_KAFKA_RETRY_DELAY_MS": "500",
}
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

Note = Callable[[str], None]


class ChaosPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked and broken. `settings`: environment variables of the services.

    `wait_s_max`: the longest allowed time from a question to its answer; None: any. `stalled_s`:
    without an answer for so long, the run ends. `has_drafts`: searches are slow, and LLM servers
    say what they have cached. `python_path`: the packages that the services run; None: those of
    this process.
    """

    asked: AskedQuestions
    faults: tuple[PlannedFault, ...]
    rate_per_s: float
    seed: int
    settings: dict[str, str]
    wait_s_max: float | None = None
    stalled_s: float = STALLED_S
    llm_servers: int = 1
    has_drafts: bool = False
    python_path: Path | None = None


class ChaosRun(msgspec.Struct, frozen=True, kw_only=True):
    """What happened. Times are seconds of the run; `answers_s`: when answers were read.

    `behind`: by how many offsets a group is behind the end of a partition. `calls_allowed`: of the
    LLM beyond one for each generated answer and those that failed as the load wanted: those of one
    second for each fault and each process that ended, and one for each withdrawn question.
    """

    took_s: float
    injected: tuple[InjectedFault, ...]
    not_injected: tuple[PlannedFault, ...]
    exits: tuple[UnplannedExit, ...]
    back_after_s: dict[str, list[float]]
    answers_s: tuple[float, ...]
    open_at_end: tuple[str, ...]
    behind: dict[str, int]
    calls: LlmCalls
    calls_allowed: int
    replay_failures: int
    audit: AuditResult

    @property
    def calls_repeated(self) -> int:
        """LLM calls beyond one for each generated answer and those that failed as meant."""
        return self.calls.started - self.calls.faulted - self.audit.answers.generated


def run_chaos(index: BenchIndex, plan: ChaosPlan, *, folder: Path, note: Note) -> ChaosRun:
    """Runs it, and audits all topics. Blocks. Raises `CarpoolError` when the run itself failed."""
    asked = plan.asked.questions
    with ExitStack() as opened:
        data = opened.enter_context(fresh_folder(folder / "kafka"))
        cluster, proxies = opened.enter_context(proxied_cluster(data, broker_names(BROKERS)))
        kafka = kafka_settings(plan.settings, bootstrap=cluster.bootstrap, group_prefix="chaos")
        make_topics(kafka)
        stack = opened.enter_context(_services(index, plan, kafka, folder))
        stand_ins = {name: LlmStandIn(stack[name]) for name in stack.llm_names}
        llm = tuple(stand_ins.values())
        break_on(llm, asked.broken)
        recorder = opened.enter_context(
            TopicRecorder(kafka, [ANSWERS.name], SystemClock(), from_beginning=True)
        )
        withdrawals = Withdrawals(kafka, asked.withdrawn, plan.seed)
        replays = LetterReplays(kafka, lambda words: break_on(llm, dict.fromkeys(words, 0)))
        run = LiveRun(
            cluster=cluster,
            network=NetworkFaults(proxies),
            stack=stack,
            kafka=kafka,
            recorder=recorder,
            loads=_loads(kafka, index, plan, withdrawals.sent),
            withdrawals=withdrawals,
            replays=replays,
            dead=asked.dead,
            stand_ins=stand_ins,
        )
        faults = list(plan.faults)
        injector = FaultInjector(
            faults, run.supervisor, run.network, run.states, run, random.Random(plan.seed)
        )
        run.begin()
        took_s = _inject_until_answered(run, injector, plan.stalled_s, note)
        sent = run.end_load()
        offsets = committed_offsets(kafka)
        stack.stop_services()
        calls = calls_of(llm)
        open_at_end = run.open_transactions()
        note("reading every topic to its end")
        passages = {id: [hit.doc_id for hit in hits] for id, hits in plan.asked.passages.items()}
        answers = AnswerAudit(passages, plan.asked.texts, asked.dead, asked.withdrawn)
        audit = TopicAudit(run.started_us // 1_000, answers)
        read_topics(kafka, audit)
        received_us = [record.received_us for record in recorder.records(ANSWERS.name)]
        broke = len(injector.injected) + len(run.supervisor.exits)
        cancelled = answers.result().cancelled
        return ChaosRun(
            took_s=took_s,
            injected=tuple(injector.injected),
            not_injected=tuple(injector.pending),
            exits=tuple(run.supervisor.exits),
            back_after_s=run.supervisor.back_after_s,
            answers_s=tuple((at_us - run.started_us) / 1_000_000 for at_us in received_us),
            open_at_end=open_at_end,
            behind=audit.behind(offsets),
            calls=calls,
            calls_allowed=math.ceil(plan.rate_per_s * broke) + cancelled,
            replay_failures=replays.failures,
            audit=audit.result(sent, run.states.removed.keys()),
        )


@contextmanager
def _services(
    index: BenchIndex, plan: ChaosPlan, kafka: KafkaSettings, folder: Path
) -> Iterator[Stack]:
    """Yields the running services and LLM servers."""
    with (
        tempfile.TemporaryDirectory(prefix="carpool-") as sockets,
        Stack(
            bootstrap=kafka.bootstrap,
            index_dir=index.dir,
            work_dir=folder,
            members=MEMBERS,
            settings={
                **ENVIRONMENT,
                **(DRAFTS if plan.has_drafts else {}),
                **plan.settings,
                "CARPOOL_KAFKA_GROUP_PREFIX": kafka.group_prefix,
            },
            llm_options=("--latency-ms", str(LLM_LATENCY_MS)),
            llm_servers=plan.llm_servers,
            kv_folder=Path(sockets) if plan.has_drafts else None,
            python_path=plan.python_path,
            commands={"searcher": slow_searcher(DISK_BYTES_PER_S)} if plan.has_drafts else {},
        ) as stack,
    ):
        yield stack


def make_topics(kafka: KafkaSettings) -> None:
    """Makes the topics on a new cluster, and waits until members can begin. Blocks.

    Raises `RetryableError` when brokers or coordinators are missing after a minute.
    """
    wait_for_brokers(kafka)
    create_topics(kafka)
    wait_for_coordinators(kafka)


def wait_for_brokers(kafka: KafkaSettings) -> None:
    """Waits until all brokers are in the cluster: topics that are made before have fewer copies.

    Raises `RetryableError` when they are not within a minute.
    """
    until_s = time.monotonic() + START_TIMEOUT_S
    admin = quiet_admin(kafka)
    while len(cluster_metadata(admin, kafka, START_TIMEOUT_S).brokers) < BROKERS:
        if time.monotonic() > until_s:
            raise RetryableError("not all brokers have joined the cluster")
        time.sleep(STEP_S)


def wait_for_coordinators(kafka: KafkaSettings) -> None:
    """Waits until brokers that have just started coordinate the transactions of every member.

    Raises `RetryableError` when they do not within a minute.
    """
    until_s = time.monotonic() + START_TIMEOUT_S
    for member in members():
        group = kafka.group_of(member.partition("-")[0])
        producer = LibrdkafkaTransactionalProducer(kafka, transactional_id(group, member))
        while True:
            try:
                producer.start()
                break
            except RetryableError:
                if time.monotonic() > until_s:
                    raise
                time.sleep(STEP_S)
        producer.close()


def _loads(
    kafka: KafkaSettings, index: BenchIndex, plan: ChaosPlan, on_sent: Callable[[str], None]
) -> tuple[SteadyLoad, ...]:
    asked = plan.asked.questions
    count = len(asked.interactive) + len(asked.batch)

    def load(questions: Sequence[Question], *, is_batch: bool) -> SteadyLoad:
        return SteadyLoad(
            kafka,
            questions,
            embedding_model=index.manifest.embedding_model,
            priority="batch" if is_batch else 0,
            rate_per_s=plan.rate_per_s * len(questions) / count,
            on_sent=on_sent,
        )

    found = (load(asked.interactive, is_batch=False),)
    return (*found, load(asked.batch, is_batch=True)) if asked.batch else found


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
    run.network.end_all()
    run.states.end_all()
    while not run.supervisor.all_up() and run.now_s() - took_s < BACK_TIMEOUT_S:
        run.step()
    time.sleep(SETTLE_S)  # for records that come twice, and for the last commits
    return took_s


def committed_offsets(kafka: KafkaSettings) -> dict[TopicPartition, int]:
    """Returns the committed offset of every partition that a service reads. Blocks.

    Raises `RetryableError` without an answer.
    """
    found: dict[TopicPartition, int] = {}
    known = cluster_metadata(quiet_admin(kafka), kafka, READ_TIMEOUT_S).topics
    for service, topics in INPUTS.items():
        partitions = [
            TopicPartition(name, number) for name in topics for number in known[name].partitions
        ]
        try:
            committed = committed_so_far(kafka, kafka.group_of(service), partitions)
        except KafkaException as error:
            raise RetryableError(f"offsets cannot be read: {error.args[0].str()}") from error
        found |= {at: raw.offset for at, raw in committed.items()}
    return found


def read_topics(kafka: KafkaSettings, audit: TopicAudit) -> None:
    """Reads every topic to the end that a reader of committed records sees.

    Raises `CarpoolError` after `READ_TIMEOUT_S` without a record.
    """
    config = {"fetch.message.max.bytes": MESSAGE_BYTES_MAX}
    with TopicReader(kafka, SystemClock(), name="bench-audit", config=config) as reader:
        places = [
            at for topic in TOPICS for at in reader.partitions(topic, patience_s=TOPIC_PATIENCE_S)
        ]
        for record in reader.read_to_end(places, silence_s=READ_TIMEOUT_S):
            audit.take(record)

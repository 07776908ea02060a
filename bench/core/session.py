"""One run: a broker, the services on it, a recorder of their topics, and a load of questions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.core.embedded_broker import EmbeddedBroker
from bench.core.kafka import fresh_folder, kafka_settings
from bench.core.load import LoadPlan, QuestionSender, SentQuestion, run_load
from bench.core.stack import SERVICES, Stack
from bench.core.topic_recorder import TopicRecorder
from carpool.clock import SystemClock
from carpool.errors import CarpoolError
from carpool.kafka.admin import create_topics
from carpool.kafka.client_config import EMBEDDED_FETCH_WAIT_MS, FETCH_WAIT_MS
from carpool.testing.kafka import KafkaCluster, KafkaServer
from producers.publish_queries import Publisher
from producers.read_questions import Question
from producers.settings import ClientSettings
from schemas.topics import ANSWERS, GROUPS, RETRIEVALS

KAFKA_JAVA = (
    "-Xmx1G",
    "-Xms1G",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
)
"""The options of Kafka's own start script, for measurements after a warm-up."""
STALLED_S = 60.0
"""A wait for answers gives up after this time without any record."""
SentLoad = dict[str, SentQuestion]
"""What was sent, by question id."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """Running services with a recorder of their topics. Made by `open_session`, which ends it.

    `brokers`: of Apache Kafka, started for it.
    """

    stack: Stack
    recorder: TopicRecorder
    publisher: QuestionSender
    brokers: Sequence[KafkaServer] = ()

    def send(
        self, questions: Sequence[Question], plan: LoadPlan, times_us: Iterable[int]
    ) -> SentLoad:
        """Sends each question once, at its time, whether or not earlier ones were answered. Blocks.

        `times_us`: see `bench.core.load`. Raises `CarpoolError` when a question could not
        be sent.
        """
        sent: list[SentQuestion] = []
        require_all_sent(
            run_load(
                self.publisher,
                questions,
                times_us,
                plan=plan,
                clock=SystemClock(),
                on_sent=sent.append,
            )
        )
        return {one.query_id: one for one in sent}

    def ask(
        self,
        questions: Sequence[Question],
        plan: LoadPlan,
        times_us: Iterable[int],
        *,
        topics: Sequence[str] = (RETRIEVALS.name, ANSWERS.name),
        stalled_s: float = STALLED_S,
        settle_s: float = 0.0,
    ) -> SentLoad:
        """Sends as `send` does, then waits until one of `topics` has a record of each question.

        Blocks. Waits `settle_s` longer for records that come twice; gives up after `stalled_s`
        without any record.
        """
        load = self.send(questions, plan, times_us)
        self.recorder.wait(load.keys(), topics, stalled_s=stalled_s, settle_s=settle_s)
        return load


def require_all_sent(problems: Sequence[str]) -> None:
    """Raises `CarpoolError` where not every question is known to be in its topic."""
    if problems:
        raise CarpoolError(
            f"{len(problems)} questions failed, the first: {problems[0]}. A run in which not "
            "everything was sent measures nothing"
        )


@contextmanager
def open_session(
    index_dir: Path,
    work_dir: Path,
    settings: Mapping[str, str],
    *,
    services: Sequence[str] = SERVICES,
    brokers: int = 0,
    bootstrap: str | None = None,
    topics: Sequence[str] = (GROUPS.name, RETRIEVALS.name, ANSWERS.name),
    llm_url: str | None = None,
    llm_options: Sequence[str] = (),
    python_path: Path | None = None,
) -> Iterator[Session]:
    """Yields a session with `services` ready; then ends all.

    `settings`: environment variables of the services. `brokers`: of Apache Kafka, which are
    started; 0: `bootstrap`, or an embedded broker. `topics`: that are recorded. `llm_url`: the LLM
    server; None: a stand-in with `llm_options` where `services` has the generator. `python_path`:
    see `Stack`. Logs are written to `work_dir`. Raises `CarpoolError` with the end of a service's
    log when it does not start.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    with ExitStack() as opened:
        servers: Sequence[KafkaServer] = ()
        fetch_wait_ms = FETCH_WAIT_MS
        if brokers:
            data = opened.enter_context(fresh_folder(work_dir / "kafka"))
            cluster = opened.enter_context(KafkaCluster(data, brokers=brokers, java=KAFKA_JAVA))
            bootstrap, servers = cluster.bootstrap, cluster.servers
        elif bootstrap is None:
            embedded = EmbeddedBroker(log_file=work_dir / "broker.log")
            bootstrap = opened.enter_context(embedded).bootstrap
            fetch_wait_ms = EMBEDDED_FETCH_WAIT_MS  # a new record does not end a fetch there
        kafka = kafka_settings(settings, bootstrap=bootstrap)
        create_topics(kafka)
        recorder = opened.enter_context(TopicRecorder(kafka, topics, SystemClock(), fetch_wait_ms))
        stack = opened.enter_context(
            Stack(
                bootstrap=bootstrap,
                index_dir=index_dir,
                work_dir=work_dir,
                services=services,
                settings=settings,
                llm_url=llm_url,
                llm_options=llm_options,
                python_path=python_path,
            )
        )
        publisher = Publisher(kafka, ClientSettings())
        opened.callback(publisher.close, 5.0)
        yield Session(stack=stack, recorder=recorder, publisher=publisher, brokers=servers)

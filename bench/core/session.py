"""One run: a broker, the services on it, a recorder of their topics, and a load of questions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from bench.core.embedded_broker import EmbeddedBroker
from bench.core.kafka import fresh_folder, kafka_settings
from bench.core.load import record_of, run_load
from bench.core.stack import Stack
from bench.core.topic_recorder import TopicRecorder
from carpool.clock import SystemClock
from carpool.errors import CarpoolError
from carpool.kafka.admin import create_topics
from carpool.kafka.client_config import EMBEDDED_FETCH_WAIT_MS, FETCH_WAIT_MS
from carpool.testing.kafka import KafkaCluster, KafkaServer
from producers.build_query import QuestionArgs
from producers.publish_queries import Publisher
from producers.read_questions import Question
from producers.settings import ClientSettings
from schemas.answer import Answer
from schemas.codec import decode
from schemas.topics import ANSWERS, GROUPS, RETRIEVALS

KAFKA_JAVA = (
    "-Xmx1G",
    "-Xms1G",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
)
"""The options of Kafka's own start script, for measurements after a warm-up."""
SentLoad = dict[str, int]
"""When each question was due, epoch microseconds, by its id."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """Running services with a recorder of their topics. Made by `open_session`, which ends it.

    `brokers` are those of Apache Kafka that were started for it.
    """

    stack: Stack
    recorder: TopicRecorder
    publisher: Publisher
    brokers: Sequence[KafkaServer] = ()

    def send(
        self, questions: Sequence[Question], times_us: Iterable[int], **asked: Unpack[QuestionArgs]
    ) -> SentLoad:
        """Sends each question once, at its time. Raises `CarpoolError` where one is not sent."""
        sent = SentLoad()
        problems = run_load(
            self.publisher,
            questions,
            times_us,
            record_of=partial(record_of, **asked),
            clock=SystemClock(),
            on_sent=sent.__setitem__,
        )
        require_all_sent(problems)
        return sent

    def answers(self, load: SentLoad) -> list[Answer]:
        """Returns all answers so far, in the order read."""
        records = self.recorder.records(ANSWERS.name)
        return [decode(Answer, one.value, one.headers) for one in records if one.key in load]

    def answered_ms(self, load: SentLoad) -> dict[str, float]:
        """Returns the time from when a question was due until its first answer was read, by id."""
        records = self.recorder.records(ANSWERS.name)
        read_us = {one.key: one.received_us for one in reversed(records) if one.key in load}
        return {key: (at_us - load[key]) / 1_000 for key, at_us in read_us.items()}


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
    brokers: int = 0,
    bootstrap: str | None = None,
    topics: Sequence[str] = (GROUPS.name, RETRIEVALS.name, ANSWERS.name),
    **stack: Any,
) -> Iterator[Session]:
    """Yields a session with services that are ready; then ends all.

    `settings`: environment variables of the services. `brokers`: of Apache Kafka, which are
    started; 0: `bootstrap`, or an embedded broker. `topics`: that are recorded. `stack`: further
    arguments of `Stack`. Logs are written to `work_dir`. Raises `CarpoolError` with the end of a
    service's log when it does not start.
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
        running = Stack(
            bootstrap=bootstrap, index_dir=index_dir, work_dir=work_dir, settings=settings, **stack
        )
        opened.enter_context(running)
        publisher = Publisher(kafka, ClientSettings())
        opened.callback(publisher.close, 5.0)
        yield Session(stack=running, recorder=recorder, publisher=publisher, brokers=servers)

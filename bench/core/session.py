"""One run: a broker, the services on it, a reader of what they write, and a way to ask. Everything
ends with it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import confluent_kafka
import msgspec

from bench.core.kafka_settings import kafka_section
from bench.core.stack import Stack
from bench.core.topic_recorder import TopicRecorder, end_offsets
from carpool.clock import SystemClock
from carpool.errors import CarpoolError, RetryableError
from carpool.kafka.admin import create_topics
from carpool.kafka.client_config import client_config
from carpool.kafka.clients import Position
from carpool.kafka.embedded import EmbeddedBroker
from carpool.kafka.librdkafka.partition_handover import commit_now
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import TopicReader
from producers.arrival_times import bounded, even, poisson
from producers.publish_queries import LOGGER, Publisher
from producers.read_questions import Question
from producers.send_load import (
    LoadPlan,
    LoadProgress,
    LoadSummary,
    QuestionSender,
    SentQuestion,
    run_load,
)
from producers.settings import ClientSettings
from schemas.topics import ANSWERS, BATCH, GROUPS, QUERIES, RETRIEVALS

INPUTS = {"grouper": QUERIES.name, "searcher": GROUPS.name, "generator": RETRIEVALS.name}
"""The topic that each service reads; beside it, that of the class `batch`."""

QUIET_TIMEOUT_S = 30.0
COORDINATOR_TIMEOUT_S = 30.0
COORDINATOR_PAUSE_S = 0.1


class Broker(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run happens. `is_fresh`: made for the run, so that its topics begin with it."""

    bootstrap: str
    is_fresh: bool


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked, by query id, and whether all of it came back before the services fell
    silent.
    """

    sent: dict[str, SentQuestion]
    summary: LoadSummary
    is_complete: bool


class Session:
    """A stack that runs and is listened to. Made by `open_session`."""

    def __init__(
        self, *, stack: Stack, reader: TopicRecorder, publisher: QuestionSender, clock: SystemClock
    ) -> None:
        """Owns nothing: `open_session` ends the parts."""
        self.stack = stack
        self.reader = reader
        self._publisher = publisher
        self._clock = clock

    def send(
        self,
        questions: Sequence[Question],
        plan: LoadPlan,
        *,
        rate_per_s: float,
        arrivals: Literal["even", "poisson"] = "even",
        seed: int = 0,
        on_sent: Callable[[int], None] = lambda _: None,
    ) -> tuple[dict[str, SentQuestion], LoadSummary]:
        """Sends each question once, `rate_per_s` on average, whether or not earlier ones are back.
        Blocks.

        Returns what was sent, by query id. Raises `CarpoolError` when something could not be sent.
        """
        sent: dict[str, SentQuestion] = {}

        def note(one: SentQuestion) -> None:
            sent[one.query_id] = one

        def progress(load: LoadProgress) -> None:
            on_sent(load.sent)

        times_us = even(rate_per_s) if arrivals == "even" else poisson(rate_per_s, seed)
        summary = run_load(
            self._publisher,
            questions,
            bounded(times_us, duration_s=None, limit=len(questions)),
            plan=plan,
            clock=self._clock,
            on_sent=note,
            on_progress=progress,
        )
        if summary.errors or summary.unacknowledged:
            raise CarpoolError(
                f"{summary.errors} questions failed and {summary.unacknowledged} were not "
                "acknowledged "
                f"({summary.first_error}): a run in which not everything was sent measures nothing"
            )
        return sent, summary

    def ask(
        self,
        questions: Sequence[Question],
        plan: LoadPlan,
        *,
        rate_per_s: float,
        arrivals: Literal["even", "poisson"] = "even",
        seed: int = 0,
        topics: Sequence[str] = (RETRIEVALS.name, ANSWERS.name),
        stalled_s: float,
        settle_s: float = 0.0,
        on_sent: Callable[[int], None] = lambda _: None,
        on_seen: Callable[[int], None] = lambda _: None,
    ) -> Asked:
        """As `send`, and waits until all are back: until a record of one of `topics` has the id of
        each. Blocks.

        Waits `settle_s` more for what may come twice, and gives up after `stalled_s` without any
        record.
        """
        sent, summary = self.send(
            questions, plan, rate_per_s=rate_per_s, arrivals=arrivals, seed=seed, on_sent=on_sent
        )
        is_complete = self.reader.wait(
            sent.keys(), topics, stalled_s=stalled_s, settle_s=settle_s, on_progress=on_seen
        )
        return Asked(sent=sent, summary=summary, is_complete=is_complete)

    def wait_quiet(self, *services: str) -> None:
        """Waits until these services hold nothing that is not committed. Raises `CarpoolError` when
        they keep it.
        """
        until_s = time.monotonic() + QUIET_TIMEOUT_S
        for service in services:
            while self.stack[service].metric("carpool_units_in_flight"):
                if time.monotonic() > until_s:
                    raise CarpoolError(
                        f"{service} still holds work after {QUIET_TIMEOUT_S:g} s; see its log"
                    )
                time.sleep(0.05)


@contextmanager
def open_broker(bootstrap: str | None, log_file: Path) -> Iterator[Broker]:
    """Yields the broker that is named, or an embedded one that ends with the block."""
    if bootstrap is not None:
        yield Broker(bootstrap=bootstrap, is_fresh=False)
        return
    with EmbeddedBroker(log_file=log_file) as embedded:
        yield Broker(bootstrap=embedded.bootstrap, is_fresh=True)


@contextmanager
def open_session(
    *,
    bootstrap: str | None,
    index_dir: Path,
    work_dir: Path,
    services: Sequence[str],
    settings: Mapping[str, str],
    llm_url: str | None = None,
) -> Iterator[Session]:
    """Yields a session with `services` ready, on `bootstrap` or a broker of its own; ends
    everything after.

    `settings`: environment variables of the services. Logs go to `work_dir`. The services read what
    is published from now on, in consumer groups of this session. Raises `CarpoolError` with the end
    of a service's log when it does not start.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    clock = SystemClock()
    with ExitStack() as stack:
        broker = stack.enter_context(open_broker(bootstrap, work_dir / "broker.log"))
        prefix = f"carpool-bench-{uuid.uuid4().hex[:8]}"
        kafka = kafka_section(settings, bootstrap=broker.bootstrap, group_prefix=prefix)
        create_topics(kafka)
        if not broker.is_fresh:
            for service in services:
                for topic in (INPUTS[service], BATCH[INPUTS[service]].name):
                    begin_at_end(kafka, kafka.group_of(service), topic)
        topics = [GROUPS.name, RETRIEVALS.name, ANSWERS.name]
        reader = stack.enter_context(
            TopicRecorder(kafka, topics, clock, from_beginning=broker.is_fresh)
        )
        processes = stack.enter_context(
            Stack(
                bootstrap=broker.bootstrap,
                index_dir=index_dir,
                work_dir=work_dir,
                services=services,
                settings={**settings, "CARPOOL_KAFKA_GROUP_PREFIX": kafka.group_prefix},
                llm_url=llm_url,
            )
        )
        publisher = Publisher(kafka, ClientSettings())
        stack.callback(publisher.close, 5.0)
        yield Session(stack=processes, reader=reader, publisher=publisher, clock=clock)


def begin_at_end(kafka: KafkaSettings, group: str, topic: str) -> None:
    """Commits the ends of `topic` for `group`, which nobody has joined yet: it goes on from there.
    Blocks.

    Raises `RetryableError` when the group's coordinator is not there in time, as that of brokers
    which have just begun may be.
    """
    until_s = time.monotonic() + COORDINATOR_TIMEOUT_S
    consumer = confluent_kafka.Consumer(
        client_config(kafka) | {"group.id": group, "enable.auto.commit": False}, logger=LOGGER
    )
    try:
        while True:
            try:
                with TopicReader(kafka, SystemClock(), name="bench-ends") as reader:
                    ends = end_offsets(reader, topic)
                commit_now(consumer, {at: Position(end, "") for at, end in ends.items()})
                return
            except RetryableError:
                if time.monotonic() > until_s:
                    raise
            time.sleep(COORDINATOR_PAUSE_S)
    finally:
        consumer.close()

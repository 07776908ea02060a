"""The baseline as processes: three bare hops in a chain, topics of their own, and a session that
asks through them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec

from bench.core.kafka_settings import kafka_section
from bench.core.session import Session
from bench.core.stack import ServiceProcess, Stack
from bench.core.topic_recorder import TopicRecorder
from bench.services.overhead.contestants import Delivery
from carpool.clock import SystemClock
from carpool.errors import CarpoolError
from carpool.kafka.admin import create_topics
from producers.build_query import QueryRecord
from producers.publish_queries import Placed, Publisher
from producers.read_questions import Question
from producers.send_load import LoadPlan, QuestionSender
from producers.settings import ClientSettings
from schemas.topics import ANSWERS, GROUPS, QUERIES, RETRIEVALS

TOPICS = tuple(
    msgspec.structs.replace(topic, name=f"bench.bare-hops.{number}.v1")
    for number, topic in enumerate((QUERIES, GROUPS, RETRIEVALS, ANSWERS))
)
"""As the services' topics, with as many partitions and copies each."""

NAMES = tuple(topic.name for topic in TOPICS)
STALLED_S = 60.0


class Redirected:
    """A sender that writes every question to one topic, whatever its own is."""

    def __init__(self, sender: QuestionSender, topic: str) -> None:
        self._sender = sender
        self._topic = topic

    def send(self, record: QueryRecord, on_placed: Placed) -> None:
        """Queues a record; raises `PublishError` when it cannot."""
        self._sender.send(replace(record, topic=self._topic), on_placed)

    def flush(self, timeout_s: float) -> int:
        """Waits for acknowledgements; returns how many are missing."""
        return self._sender.flush(timeout_s)


def hop_processes(
    delivery: Delivery, *, bootstrap: str, folder: Path, settings: Mapping[str, str]
) -> dict[str, ServiceProcess]:
    """Returns three hops by name, from topic to topic; they are not started. `settings`:
    environment variables.
    """
    base = {name: value for name, value in os.environ.items() if not name.startswith("CARPOOL_")}
    command = [
        sys.executable,
        "-m",
        f"{__package__}.bare_hops",
        "--bootstrap",
        bootstrap,
        "--delivery",
        delivery,
    ]
    return {
        f"hop {number}": ServiceProcess(
            [*command, "--from", source, "--to", target, "--group", f"bare-hop-{number}"],
            environ=base | {"PYTHONUNBUFFERED": "1", **settings},
            port=0,  # it has no pages
            log_file=folder / f"bare-hop-{number}.log",
            ready_page="",
        )
        for number, (source, target) in enumerate(pairwise(NAMES), start=1)
    }


@contextmanager
def open_bare_hops(
    delivery: Delivery, *, stack: Stack, folder: Path, settings: Mapping[str, str]
) -> Iterator[tuple[Session, dict[str, ServiceProcess]]]:
    """Yields a session that asks through three hops on the brokers of `stack`, once a question came
    through; and the hops.

    Raises `CarpoolError` with the ends of the hops' logs where none comes through.
    """
    clock = SystemClock()
    kafka = kafka_section(settings, bootstrap=stack.bootstrap)
    create_topics(kafka, TOPICS)
    hops = hop_processes(delivery, bootstrap=stack.bootstrap, folder=folder, settings=settings)
    with ExitStack() as opened:
        reader = opened.enter_context(TopicRecorder(kafka, NAMES[1:], clock, from_beginning=True))
        for hop in hops.values():
            hop.start()
            opened.callback(hop.stop)
        publisher = Publisher(kafka, ClientSettings())
        opened.callback(publisher.close, 5.0)
        session = Session(
            stack=stack, reader=reader, publisher=Redirected(publisher, NAMES[0]), clock=clock
        )
        asked = session.ask(
            [Question(text="the first")],
            LoadPlan(),
            rate_per_s=1,
            topics=NAMES[-1:],
            stalled_s=STALLED_S,
        )
        if not asked.is_complete:
            ends = "\n".join(
                hop.log_file.read_text(errors="replace")[-1_000:] for hop in hops.values()
            )
            raise CarpoolError(f"the bare hops let nothing through:\n{ends}")
        yield session, hops

"""The baseline as processes: three bare hops in a chain, and a session that sends through them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec

from bench.core.kafka import kafka_settings
from bench.core.session import Session
from bench.core.stack import ServiceProcess, Stack, clean_environment
from bench.core.topic_recorder import TopicRecorder
from bench.services.overhead.bare_hop import Hop
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
"""Topics of their own, each with the partitions and copies of a topic of the services."""

NAMES = tuple(topic.name for topic in TOPICS)


class RedirectedSender:
    """A sender that writes every question to one topic."""

    def __init__(self, sender: QuestionSender, topic: str) -> None:
        self._sender = sender
        self._topic = topic

    def send(self, record: QueryRecord, on_placed: Placed) -> None:
        self._sender.send(replace(record, topic=self._topic), on_placed)

    def flush(self, timeout_s: float) -> int:
        return self._sender.flush(timeout_s)


def hop_processes(
    delivery: Delivery, *, bootstrap: str, folder: Path, settings: Mapping[str, str]
) -> dict[str, ServiceProcess]:
    """Returns three hops by name, not started. `settings`: environment variables."""
    hops = {
        f"hop {number}": Hop(
            bootstrap=bootstrap,
            source=source,
            target=target,
            group=f"bare-hop-{number}",
            delivery=delivery,
        )
        for number, (source, target) in enumerate(pairwise(NAMES), start=1)
    }
    return {
        name: ServiceProcess(
            [sys.executable, "-m", f"{__package__}.bare_hop", msgspec.json.encode(hop).decode()],
            environ={**clean_environment(), **settings},
            port=0,  # it has no pages
            log_file=folder / f"{hop.group}.log",
            ready_page="",
        )
        for name, hop in hops.items()
    }


@contextmanager
def open_bare_chain(
    delivery: Delivery, *, stack: Stack, folder: Path, settings: Mapping[str, str]
) -> Iterator[tuple[Session, dict[str, ServiceProcess]]]:
    """Yields a session through three hops on the brokers of `stack`, and the hops.

    Waits until a first question came through; else raises `CarpoolError` with the hops' logs.
    """
    clock = SystemClock()
    kafka = kafka_settings(settings, bootstrap=stack.bootstrap)
    create_topics(kafka, TOPICS)
    hops = hop_processes(delivery, bootstrap=stack.bootstrap, folder=folder, settings=settings)
    with ExitStack() as opened:
        recorder = opened.enter_context(TopicRecorder(kafka, NAMES[1:], clock, from_beginning=True))
        for hop in hops.values():
            hop.start()
            opened.callback(hop.stop)
        publisher = Publisher(kafka, ClientSettings())
        opened.callback(publisher.close, 5.0)
        sender = RedirectedSender(publisher, NAMES[0])
        session = Session(stack=stack, recorder=recorder, publisher=sender, clock=clock)
        first = [Question(text="the first")]
        load = session.ask(first, LoadPlan(), rate_per_s=1, topics=NAMES[-1:])
        if not load.is_complete:
            tails = "\n".join(hop.log_tail(1_000) for hop in hops.values())
            raise CarpoolError(f"no record came through the bare hops:\n{tails}")
        yield session, hops

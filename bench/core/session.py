"""One run: a broker, the services on it, a recorder of their topics, and a load of questions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.core.kafka import kafka_settings
from bench.core.stack import Stack
from bench.core.topic_recorder import TopicRecorder
from carpool.clock import SystemClock
from carpool.errors import CarpoolError
from carpool.kafka.admin import create_topics
from carpool.kafka.embedded import EmbeddedBroker
from producers.publish_queries import Publisher
from producers.read_questions import Question
from producers.send_load import LoadPlan, QuestionSender, SentQuestion, run_load
from producers.settings import ClientSettings
from schemas.topics import ANSWERS, GROUPS, RETRIEVALS

STALLED_S = 60.0
"""A wait for answers gives up after this time without any record."""
SentLoad = dict[str, SentQuestion]
"""What was sent, by question id."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """Running services with a recorder of their topics. Made by `open_session`, which ends it."""

    stack: Stack
    recorder: TopicRecorder
    publisher: QuestionSender

    def send(
        self, questions: Sequence[Question], plan: LoadPlan, times_us: Iterable[int]
    ) -> SentLoad:
        """Sends each question once, at its time, whether or not earlier ones were answered. Blocks.

        `times_us`: see `producers.arrival_times`. Raises `CarpoolError` when a question could not
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
    *,
    bootstrap: str | None,
    index_dir: Path,
    work_dir: Path,
    services: Sequence[str],
    settings: Mapping[str, str],
    llm_url: str | None = None,
    topics: Sequence[str] = (GROUPS.name, RETRIEVALS.name, ANSWERS.name),
) -> Iterator[Session]:
    """Yields a session with `services` ready, on `bootstrap` or an embedded broker; then ends all.

    `settings`: environment variables of the services. `llm_url`: the LLM server; None: a stand-in
    where `services` has the generator. `topics`: that are recorded. Logs are written to `work_dir`.
    Raises `CarpoolError` with the end of a service's log when it does not start.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    with ExitStack() as opened:
        if bootstrap is None:
            embedded = EmbeddedBroker(log_file=work_dir / "broker.log")
            bootstrap = opened.enter_context(embedded).bootstrap
        kafka = kafka_settings(settings, bootstrap=bootstrap)
        create_topics(kafka)
        recorder = opened.enter_context(TopicRecorder(kafka, topics, SystemClock()))
        stack = opened.enter_context(
            Stack(
                bootstrap=bootstrap,
                index_dir=index_dir,
                work_dir=work_dir,
                services=services,
                settings=settings,
                llm_url=llm_url,
            )
        )
        publisher = Publisher(kafka, ClientSettings())
        opened.callback(publisher.close, 5.0)
        yield Session(stack=stack, recorder=recorder, publisher=publisher)

"""The load of a run: publishes questions with headers, withdraws some, replays dead letters."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Unpack

from bench.core.load import even, record_of, run_load
from bench.core.session import require_all_sent
from bench.data.made_up import NLIST
from bench.reliability.chaos.questions import WORD, ChaosQuestion
from carpool.clock import SystemClock
from carpool.dead_letters.box import DeadLetterBox
from carpool.dead_letters.letter import Selection
from carpool.errors import CarpoolError
from carpool.kafka.librdkafka.transactional import LibrdkafkaTransactionalProducer
from carpool.kafka.settings import KafkaSettings
from producers.build_query import QueryRecord, QuestionArgs, build_cancel
from producers.errors import PublishError
from producers.publish_queries import Publisher
from producers.read_questions import Question
from producers.settings import ClientSettings
from schemas.headers import DEADLINE_HEADER
from schemas.topics import DEAD_LETTER_SUFFIX, QUERY_TOPICS

PUBLISH_TIMEOUT_MS = 600_000
OF_QUERIES = Selection(topics=frozenset(each + DEAD_LETTER_SUFFIX for each in QUERY_TOPICS))
REPLAY_PAUSE_S = 4.0
WITHDRAWN_AFTER_S_MAX = 0.5
"""An answer takes about 0.2 s, so some questions are withdrawn on their way and some too late."""


def with_headers(**asked: Unpack[QuestionArgs]) -> Callable[[Question, int], QueryRecord]:
    """Returns what makes a record with headers of an application: no two have the same ones."""
    numbers = count(1)

    def made(question: Question, due_us: int) -> QueryRecord:
        assert isinstance(question, ChaosQuestion)
        name = f"{question.id}/{next(numbers)}"
        asked["tenant"], asked["priority"] = question.tenant, "batch" if question.is_batch else 0
        asked["nprobe"] = NLIST if question.is_live else None  # what is nearest is known then
        asked["headers"] = {"correlation_id": name, "reply_to": f"answers/{name}"}
        record = record_of(question, due_us, **asked)
        if question.deadline_ms is None:
            return record
        deadline = str(due_us // 1_000 + question.deadline_ms).encode()
        return replace(record, headers=(*record.headers, (DEADLINE_HEADER, deadline)))

    return made


class SteadyLoad(threading.Thread):
    """Publishes questions at a steady rate, under their own ids.

    Some are withdrawn by their ids, at a drawn time after they were sent.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        questions: Sequence[ChaosQuestion],
        asked: QuestionArgs,
        *,
        rate_per_s: float,
        seed: int,
    ) -> None:
        super().__init__(name="load", daemon=True)
        self._publisher = Publisher(kafka, ClientSettings(publish_timeout_ms=PUBLISH_TIMEOUT_MS))
        self._questions, self._asked, self._rate_per_s = questions, asked, rate_per_s
        self._withdrawn = {each.id for each in questions if each.is_withdrawn}
        self._rng = random.Random(seed)
        self._problems: list[str] | None = None
        self.sent: list[str] = []

    def run(self) -> None:
        try:
            self._problems = run_load(
                self._publisher,
                self._questions,
                even(self._rate_per_s),
                record_of=with_headers(**self._asked),
                clock=SystemClock(),
                on_sent=self._sent,
                flush_timeout_s=PUBLISH_TIMEOUT_MS / 1_000,
            )
        finally:
            self._publisher.close(5.0)

    def _sent(self, query_id: str, _: int) -> None:
        self.sent.append(query_id)
        if query_id in self._withdrawn:
            after_s = self._rng.uniform(0, WITHDRAWN_AFTER_S_MAX)
            threading.Timer(after_s, self._withdraw, [query_id]).start()

    def _withdraw(self, query_id: str) -> None:
        cancel = build_cancel(query_id, None, SystemClock().now_us())
        with suppress(PublishError):  # best effort, as an application does it
            self._publisher.send(cancel, lambda _, error: None)

    def end(self) -> None:
        """Waits for the end. Raises `CarpoolError` where a question may be missing in its topic."""
        self.join()
        if self._problems is None:
            raise CarpoolError("the load ended with an error, so not every question was sent")
        require_all_sent(self._problems)


class LetterReplays(threading.Thread):
    """Replays every dead letter of a query, as `carpool dlq replay` does, again and again."""

    def __init__(self, kafka: KafkaSettings, heal: Callable[[set[str]], None]) -> None:
        """`heal`: makes the LLM answer prompts with these words."""
        super().__init__(name="replays", daemon=True)
        self._kafka = kafka
        self._heal = heal
        self._stopping = threading.Event()
        self.replayed = 0
        """Letters that are known to be replayed."""

    def run(self) -> None:
        while not self._stopping.wait(REPLAY_PAUSE_S):
            with suppress(CarpoolError):  # the next round finds out what was replayed
                self._replay()

    def _replay(self) -> None:
        box = DeadLetterBox(self._kafka, SystemClock())
        producer = LibrdkafkaTransactionalProducer(self._kafka, self._kafka.group_of("dlq"))
        try:
            producer.start()
            marks = box.marks()
            self.replayed = sum(mark.action == "replayed" for mark in marks.values())
            letters = list(box.selected(OF_QUERIES, marks))
            words = {word for each in letters for word in WORD.findall(each.value.decode())}
            if letters:
                self._heal(words)
                box.mark(letters, "replayed", producer)
                self.replayed += len(letters)
        finally:
            producer.close()

    def end(self) -> None:
        """Ends after the current round."""
        self._stopping.set()
        self.join()

"""Keeps a backlog of prompts at the generator's stage for some seconds, without a broker."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
import numpy as np
from prometheus_client import CollectorRegistry

from bench.data.evaluation import CorpusPassage
from bench.generation.streams import Ask
from carpool.clock import SystemClock
from carpool.errors import CarpoolError
from carpool.kafka.records import Message, Output
from carpool.loop.stage import Done, Unit
from carpool.telemetry.metrics import Metrics
from generator.llm.openai_api import OpenAiLlm
from generator.llm.protocol import LlmEvent, LlmFinished, LlmRequest
from generator.llm.servers import LlmServers
from generator.prompts import load_templates
from generator.service import GeneratorStage
from generator.settings import GeneratorSettings, LlmSettings
from schemas.codec import encode
from schemas.errors import RecordError
from schemas.query import Query
from schemas.record import ClusterId, Source
from schemas.retrieval import Hit, Retrieval
from schemas.topics import QUERIES, RETRIEVALS

TICK_S = 0.1
OPEN_TIMEOUT_S = 60.0


class BacklogRound(msgspec.Struct, frozen=True, kw_only=True):
    """What a server did in the seconds after a backlog began.

    `tokens`, `limits`: output tokens, and the requests that it gets at once, in each second.
    `ttft_p95_s`: of all requests that were sent; a request without a token counts with its wait so
    far.
    """

    concurrency: str
    seconds: int
    answers: int
    answers_per_s: float
    ttft_p50_s: float
    ttft_p95_s: float
    tokens: tuple[int, ...]
    limits: tuple[int, ...]

    def tokens_per_s(self, begin: int, end: int) -> float:
        """Returns the mean of the seconds from `begin` to `end`."""
        return float(np.mean(self.tokens[begin:end]))


class _SeenLlm(OpenAiLlm):
    """A server whose first tokens, pieces and answers are counted with their times."""

    def __init__(self, settings: LlmSettings) -> None:
        super().__init__(settings)
        self.sent_s: dict[str, float] = {}
        self.ttfts_s: list[float] = []
        self.pieces_s: list[float] = []
        self.answers_s: list[float] = []

    async def stream(self, request: LlmRequest) -> AsyncGenerator[LlmEvent, None]:
        self.sent_s[request.id] = time.monotonic()
        async with aclosing(super().stream(request)) as events:
            async for event in events:
                now_s = time.monotonic()
                if isinstance(event, LlmFinished):
                    self.answers_s.append(now_s)
                else:
                    self.pieces_s.append(now_s)
                sent_s = self.sent_s.pop(request.id, None)
                if sent_s is not None:
                    self.ttfts_s.append(now_s - sent_s)
                yield event


class _CountingSink:
    """Takes the answers and forgets them."""

    def __init__(self) -> None:
        self.failure: CarpoolError | None = None
        self.answers = 0
        self._lock = threading.Lock()

    def done(self, done: Done) -> None:
        with self._lock:
            self.answers += done.failure is None

    def charge(self, parts: Sequence[tuple[int, int]], error: Exception) -> None:
        self.failure = CarpoolError(f"a query failed: {error!r}")

    def hint(self, output: Output) -> None:
        pass

    def refuse(self, unit: Unit[Any], error: RecordError) -> None:
        self.failure = CarpoolError(f"a retrieval was refused: {error}")

    def leave_group(self, reason: str) -> None:
        self.failure = CarpoolError(reason)

    def fail(self, error: CarpoolError) -> None:
        self.failure = error


def units_of(asks: Sequence[Ask], passages: Sequence[CorpusPassage]) -> Iterator[Unit[Retrieval]]:
    """Yields retrievals as the searcher writes them; the questions are repeated without end."""
    for id in itertools.count(1):
        ask = asks[(id - 1) % len(asks)]
        hits = tuple(
            Hit(
                doc_id=str(passages[row].id),
                score=score,
                cluster=ClusterId(0),
                title=passages[row].title,
                text=passages[row].text,
            )
            for row, score in zip(ask.passages, ask.scores, strict=True)
        )
        source = Source(topic=QUERIES.name, partition=0, offset=id, timestamp_ms=0)
        retrieval = Retrieval(
            query=Query(query_id=f"q-{id}", text=ask.question),
            source=source,
            revision=1,
            is_final=True,
            index_version="bench",
            embedding_model="bench",
            hits=hits,
            skipped_clusters=(),
        )
        value, headers = encode(retrieval, event_id=f"q-{id}", source="bench", time_us=0)
        message = Message(
            source=msgspec.structs.replace(source, topic=RETRIEVALS.name),
            key=None,
            value=value,
            headers=headers,
            received_us=0,
        )
        yield Unit(id=id, record=retrieval, message=message)


def run_backlog(
    units: Iterator[Unit[Retrieval]],
    settings: GeneratorSettings,
    llm: LlmSettings,
    *,
    seconds: int,
) -> BacklogRound:
    """Keeps the stage full for `seconds`, then cancels what runs. Blocks.

    Raises `CarpoolError` where the server does not answer, or the stage fails.
    """
    engine, sink, clock = _SeenLlm(llm), _CountingSink(), SystemClock()
    metrics = Metrics(CollectorRegistry())
    servers = LlmServers([engine])
    stage = GeneratorStage(settings, llm, load_templates(settings), servers, metrics, clock)
    stage.start(sink)
    try:
        until_s = time.monotonic() + OPEN_TIMEOUT_S
        while reasons := stage.not_ready():
            if time.monotonic() > until_s:
                raise CarpoolError(f"the generator is not ready: {'; '.join(reasons)}")
            stage.tick(clock.now_us(), 0)
            time.sleep(TICK_S)
        begun_s = time.monotonic()
        limits: list[int] = []
        while (passed_s := time.monotonic() - begun_s) < seconds:
            if sink.failure is not None:
                raise sink.failure
            for _ in range(stage.credit().records):
                stage.offer(next(units), clock.now_us())
            stage.tick(clock.now_us(), 1)
            if passed_s >= len(limits):
                limits.append(_limit(metrics, servers.labels[0]))
            time.sleep(TICK_S)
        ended_s = time.monotonic()
    finally:
        stage.close()
    waits = [ended_s - sent_s for sent_s in engine.sent_s.values()]
    ttfts = [*engine.ttfts_s, *waits] or [0.0]
    answers = sum(at_s <= ended_s for at_s in engine.answers_s)
    tokens, _ = np.histogram(
        np.array(engine.pieces_s) - begun_s, bins=np.arange(seconds + 1, dtype=float)
    )
    return BacklogRound(
        concurrency=str(settings.concurrency or "found"),
        seconds=seconds,
        answers=answers,
        answers_per_s=round(answers / (ended_s - begun_s), 4),
        ttft_p50_s=round(float(np.percentile(ttfts, 50)), 3),
        ttft_p95_s=round(float(np.percentile(ttfts, 95)), 3),
        tokens=tuple(map(int, tokens)),
        limits=tuple(limits),
    )


def _limit(metrics: Metrics, server: str) -> int:
    value = metrics.registry.get_sample_value("carpool_llm_concurrency", {"server": server})
    return int(value or 0)

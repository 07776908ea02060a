"""Kills a real vLLM while the generator's stage sends prompts to two of them, and starts it again.

The stage follows the KV events of both servers, and chooses server and prompt by them. What each
server has cached is simulated afterwards, with the prompts in the order in which they were sent.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from bench.core.progress import Tell
from bench.core.stack import ServiceProcess
from bench.data.evaluation import CorpusPassage
from bench.generation.backlog import OPEN_TIMEOUT_S, units_of
from bench.generation.block_simulator import BlockSimulator, CacheSize
from bench.generation.llm_server import START_TIMEOUT_S, LlmAddress, own_vllm
from bench.generation.real_rows import cache_size
from bench.generation.streams import Ask
from bench.services.results import ANSWERED
from carpool.clock import SystemClock
from carpool.errors import CarpoolError
from carpool.kafka.records import Output
from carpool.loop.stage import Done, Unit
from carpool.telemetry.metrics import Metrics
from generator.llm.openai_api import OpenAiLlm
from generator.llm.protocol import LlmEvent, LlmFinished, LlmRequest
from generator.llm.servers import LlmServers
from generator.prompts import load_templates
from generator.service import GeneratorStage
from generator.settings import GeneratorSettings, LlmSettings
from schemas.answer import Answer
from schemas.codec import decode
from schemas.errors import RecordError
from schemas.retrieval import Retrieval

SERVERS = 2
KILLED_AFTER_SHARE = 0.25
"""The server is killed after so many of the answers, so that many come after its restart."""
CONCURRENCY = 8
OUTPUT_TOKENS = 16
TICK_S = 0.02
OFF_MAX = 0.01


class ServerPart(msgspec.Struct, frozen=True, kw_only=True):
    """The answered prompts of one server between two moments: simulated, and as it reported.

    `equal_prompts`: those whose cached tokens were the simulated ones.
    """

    server: str
    prompts: int
    simulated_share: float
    reported_share: float
    equal_prompts: int


class KilledServer(msgspec.Struct, frozen=True, kw_only=True):
    """A run. `statuses`: of all answers. `answered_twice`: queries with more than one answer.

    `killed_after`: answers before the kill. `lost_requests`: those that the killed server had, or
    got before its end was known; their prompts were sent again. `emptied_after_ms`: from the kill
    until none of its blocks was counted as cached. `blocks_while_down`: the most that were counted
    later, before it was ready again `ready_after_s` after the kill; None: not before the last
    answer. `credited_in_vain`: answers of the whole run with fewer cached tokens than the stage had
    expected.
    """

    backlog: int
    prompts: int
    statuses: dict[str, int]
    answered_twice: int
    killed_after: int
    lost_requests: int
    blocks_at_kill: int
    emptied_after_ms: int
    blocks_while_down: int
    ready_after_s: float | None
    credited_in_vain: int
    parts: tuple[ServerPart, ...]

    @property
    def answered(self) -> int:
        """The prompts with an answer that is no failure."""
        good = sum(self.statuses.get(status, 0) for status in ANSWERED)
        return good - self.answered_twice


@dataclass(slots=True)
class Sent:
    """A request, in the order of sending. `cached_tokens` None: it was not answered."""

    at_s: float
    token_ids: tuple[int, ...]
    cached_tokens: int | None = None


class _NotedLlm(OpenAiLlm):
    """A server whose requests are kept."""

    def __init__(self, settings: LlmSettings) -> None:
        super().__init__(settings)
        self.requests: list[Sent] = []

    async def stream(self, request: LlmRequest) -> AsyncGenerator[LlmEvent, None]:
        ids = request.token_ids or await self.tokenize(request)
        sent = Sent(time.monotonic(), ids)
        self.requests.append(sent)
        async with aclosing(super().stream(replace(request, token_ids=ids))) as events:
            async for event in events:
                if isinstance(event, LlmFinished):
                    sent.cached_tokens = event.cached_tokens
                yield event


@dataclass
class _Answers:
    """Takes the answers of a stage."""

    answers: list[Answer] = field(default_factory=list)
    failure: CarpoolError | None = None

    def done(self, done: Done) -> None:
        output = done.outputs[0]
        self.answers.append(decode(Answer, output.value, output.headers))

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


class _TwoServers:
    """A stage with two servers, the first of which is killed."""

    def __init__(self, addresses: Sequence[LlmAddress], backlog: int) -> None:
        llm = LlmSettings(
            base_url=",".join(address.url for address in addresses),
            model=addresses[0].model,
            kv_events=",".join(address.kv_events or "" for address in addresses),
            extra_body={"ignore_eos": True},
        )
        settings = GeneratorSettings(
            concurrency=CONCURRENCY,
            intake_records_max=backlog + SERVERS * CONCURRENCY,
            overtaken_max=backlog,
            max_tokens=OUTPUT_TOKENS,
        )
        self.engines = [
            _NotedLlm(msgspec.structs.replace(llm, base_url=url)) for url in llm.base_urls()
        ]
        self.sink = _Answers()
        self._servers = LlmServers(self.engines)
        self._metrics = Metrics(CollectorRegistry())
        self._clock = SystemClock()
        self.stage = GeneratorStage(
            settings, llm, load_templates(settings), self._servers, self._metrics, self._clock
        )

    def tick(self) -> None:
        """Lets some time pass. Raises what ended the stage."""
        self.stage.tick(self._clock.now_us(), 1)
        if self.sink.failure is not None:
            raise self.sink.failure
        time.sleep(TICK_S)

    def offer(self, units: list[Unit[Retrieval]]) -> None:
        """Offers as many of the first units as the stage takes."""
        for _ in range(min(len(units), self.stage.credit().records)):
            self.stage.offer(units.pop(0), self._clock.now_us())

    def wait_open(self) -> None:
        """Waits until each server takes prompts, and it is known what it has cached."""
        until_s = time.monotonic() + OPEN_TIMEOUT_S
        while not all(self._value("llm_server_open", server) for server in range(SERVERS)):
            if time.monotonic() > until_s:
                raise CarpoolError("the stage opens no server; see the logs of vLLM")
            self.tick()

    def blocks(self, server: int) -> int:
        """Returns how many blocks count as cached."""
        return int(self._value("kv_cache_blocks", server))

    def credited_in_vain(self) -> int:
        """Returns the answers with fewer cached tokens than expected."""
        return sum(
            int(self._value("kv_cache_events_total", server, event="less"))
            for server in range(SERVERS)
        )

    def _value(self, name: str, server: int, **labels: str) -> float:
        labels["server"] = self._servers.labels[server]
        return self._metrics.registry.get_sample_value(f"carpool_{name}", labels) or 0.0


def kill_one_of_two(
    asks: Sequence[Ask],
    passages: Sequence[CorpusPassage],
    *,
    model_dir: Path,
    folders: Sequence[Path],
    vllm_args: tuple[str, ...],
    backlog: int,
    tell: Tell,
) -> KilledServer:
    """Starts two vLLMs, sends the prompts, and kills the first one meanwhile. Blocks.

    Raises `CarpoolError` where a server does not start, or prompts stay without an answer.
    """
    with ExitStack() as stack:
        started = [
            stack.enter_context(own_vllm(str(model_dir), folder, vllm_args)) for folder in folders
        ]
        size = replace(
            cache_size(started[0][0], concurrency=CONCURRENCY), output_tokens=OUTPUT_TOKENS
        )
        run = _TwoServers([address for address, _ in started], backlog)
        stack.callback(run.stage.close)
        run.stage.start(run.sink)
        run.wait_open()
        units = units_of(asks, passages)
        waiting = [next(units) for _ in asks]
        return _send(run, waiting, started[0][1], size, backlog, tell)


def _send(
    run: _TwoServers,
    waiting: list[Unit[Retrieval]],
    process: ServiceProcess,
    size: CacheSize,
    backlog: int,
    tell: Tell,
) -> KilledServer:
    prompts, answers = len(waiting), run.sink.answers
    _until(run, waiting, lambda: len(answers) >= KILLED_AFTER_SHARE * prompts, tell)
    killed_after, blocks_at_kill, killed_s = len(answers), run.blocks(0), time.monotonic()
    os.killpg(process.pid, signal.SIGKILL)  # its engine is a process of its own
    process.kill()
    _until(run, waiting, lambda: run.blocks(0) == 0, tell)
    emptied_s = time.monotonic()
    process.start()
    blocks_while_down = 0
    ready_s: float | None = None

    def is_over() -> bool:
        nonlocal blocks_while_down, ready_s
        if ready_s is None:
            blocks_while_down = max(blocks_while_down, run.blocks(0))
            if process.page("/health")[0] == 200:
                ready_s = time.monotonic()
        return len(answers) >= prompts

    _until(run, waiting, is_over, tell)
    first, other = (engine.requests for engine in run.engines)
    before = [request for request in first if request.at_s < killed_s]
    again = [one for one in first if one.at_s >= killed_s and one.cached_tokens is not None]
    parts = (
        part_of("the killed one, before the kill", before, 0.0, size),
        part_of("the other one, after the kill", other, killed_s, size),
        part_of("the killed one, after its new start", again, 0.0, size),
    )
    counts = Counter(answer.query_id for answer in answers)
    return KilledServer(
        backlog=backlog,
        prompts=prompts,
        statuses=dict(Counter(answer.status for answer in answers)),
        answered_twice=sum(count - 1 for count in counts.values()),
        killed_after=killed_after,
        lost_requests=sum(request.cached_tokens is None for request in first),
        blocks_at_kill=blocks_at_kill,
        emptied_after_ms=round((emptied_s - killed_s) * 1_000),
        blocks_while_down=blocks_while_down,
        ready_after_s=None if ready_s is None else round(ready_s - killed_s, 1),
        credited_in_vain=run.credited_in_vain(),
        parts=tuple(part for part in parts if part.prompts),
    )


def _until(
    run: _TwoServers, waiting: list[Unit[Retrieval]], is_so: Callable[[], bool], tell: Tell
) -> None:
    """Lets the stage work until something is so. Raises `CarpoolError` after `START_TIMEOUT_S`."""
    until_s = time.monotonic() + START_TIMEOUT_S
    while not is_so():
        run.offer(waiting)
        run.tick()
        tell("two vLLMs, one is killed", len(run.sink.answers), len(waiting))
        if time.monotonic() > until_s:
            raise CarpoolError("the two servers do not answer; see the logs of vLLM")


def part_of(name: str, requests: Sequence[Sent], since_s: float, size: CacheSize) -> ServerPart:
    """Simulates the requests of a server that begins with nothing; counts those since `since_s`."""
    simulator = BlockSimulator(size)
    counted: list[tuple[int, int, int]] = []
    for request in requests:
        simulated = simulator.start(request.token_ids).cached
        if request.at_s >= since_s and request.cached_tokens is not None:
            counted.append((len(request.token_ids), simulated, request.cached_tokens))
    tokens = max(1, sum(length for length, _, _ in counted))
    return ServerPart(
        server=name,
        prompts=len(counted),
        simulated_share=sum(simulated for _, simulated, _ in counted) / tokens,
        reported_share=sum(reported for _, _, reported in counted) / tokens,
        equal_prompts=sum(simulated == reported for _, simulated, reported in counted),
    )

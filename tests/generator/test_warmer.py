"""Warm-ups: what drafts begin with is computed while there is room, and is counted afterwards."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from carpool.telemetry.metrics import Metrics
from generator import service
from generator.llm.protocol import LlmFinished, LlmRefusal, LlmRequest
from generator.llm.servers import LlmServers
from generator.plan.speculation.likely import Likely
from generator.plan.speculation.protocol import EngineLoad
from generator.prompts import load_templates, prepare_prompt
from generator.settings import GeneratorSettings
from generator.warming.warmer import SEARCHES_MAX, WARM_UP_PRIORITY, Warmer
from schemas.record import ClusterId
from schemas.retrieval import Hit, Retrieval
from tests.clocks import HandClock
from tests.generator.memory_llm import MemoryLlm
from tests.generator.stage import running, unit
from tests.records import a_query, a_retrieval, a_source, a_unit

SETTINGS = GeneratorSettings(passages_max=3)
TEMPLATES = load_templates(SETTINGS)


@pytest.fixture(autouse=True)
def warmed_from_the_first_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` waits until it knows that searches take long."""
    monkeypatch.setattr(service, "Auto", lambda policy: policy)


def draft(n: int, passages: str, revision: int, **more: Any) -> Retrieval:
    """A draft of query `n` that has found the passages of these letters."""
    hits = tuple(
        Hit(doc_id=one, score=1.0, cluster=ClusterId(0), title=one, text=f"all about {one} {one}")
        for one in passages
    )
    query = a_query(f"q-{n}", "Why is that so?")
    given = {
        "revision": revision,
        "clusters_done": revision,
        "is_final": False,
        "source": a_source(n),
    } | more
    return a_retrieval(query, hits, **given)


def final(n: int) -> Retrieval:
    return draft(n, "abc", 1, is_final=True)


class Rig:
    """A warmer on an event loop, with room for `room` warm-ups at each of `servers`.

    `cached`: the server that is said to have most of every prefix.
    """

    def __init__(self, servers: int = 1) -> None:
        self.engines = [MemoryLlm() for _ in range(servers)]
        self.engine = self.engines[0]
        self.cached: int | None = None
        self.room = 8
        self.block_tokens = 0
        self.registry = CollectorRegistry()
        self.tasks: list[asyncio.Task[None]] = []
        self.warmer = Warmer(
            LlmServers(self.engines),
            Likely(),
            prepare=lambda each: prepare_prompt(each, SETTINGS, TEMPLATES),
            run=self._run,
            choose=self._choose,
            load=lambda _, warm_ups: EngineLoad(in_flight=warm_ups, waiting=0, limit=self.room),
            block_tokens=lambda: self.block_tokens,
            metrics=Metrics(self.registry),
            clock=HandClock(),
        )

    def _choose(self, ids: tuple[int, ...], warm_ups: Sequence[int]) -> int:
        if ids and self.cached is not None:
            return self.cached
        return min(range(len(self.engines)), key=lambda server: warm_ups[server])

    def _run(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.append(task)
        return task

    async def drafts(self, n: int, *founds: str) -> None:
        for revision, passages in enumerate(founds, 1):
            self.warmer.draft(draft(n, passages, revision))
            await self.settle()

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    @property
    def warmed(self) -> list[int]:
        """How many passages each warm-up had."""
        return [
            sum(id in request.token_ids for id in self.ids("[1]", "[2]", "[3]"))
            for request in self.engine.warmed
        ]

    def ids(self, *words: str) -> tuple[int, ...]:
        return tuple(zlib.crc32(word.encode()) for word in words)

    def tokens(self, kind: str) -> float:
        labels = {"kind": kind, "tenant": "none"}
        found = self.registry.get_sample_value("carpool_tokens_total", labels)
        return found or 0.0


def through(test: Callable[[Rig], Awaitable[None]], *, servers: int = 1) -> Callable[[], None]:
    """Runs a test on an event loop."""

    def run() -> None:
        async def on_loop() -> None:
            rig = Rig(servers)
            await test(rig)
            for task in rig.tasks:
                task.cancel()
            await asyncio.gather(*rig.tasks, return_exceptions=True)

        asyncio.run(on_loop())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@through
async def test_a_warm_up_ends_with_a_full_block(rig: Rig) -> None:
    await rig.drafts(1, "abc", "abc", "abc")
    (whole,) = (request.token_ids for request in rig.engine.warmed)
    rig.block_tokens = 5
    await rig.drafts(2, "abc", "abc", "abc")
    cut = rig.engine.warmed[-1].token_ids
    assert cut == whole[: len(whole) // 5 * 5]
    assert len(whole) % 5, "the test cuts something"


@through
async def test_a_prefix_is_warmed_once_and_grows(rig: Rig) -> None:
    await rig.drafts(1, "abx", "aby", "abc", "abc", "abc", "abc")
    assert rig.warmed == [2, 3]
    first, second = (request.token_ids for request in rig.engine.warmed)
    assert second[: len(first)] == first
    assert rig.ids("Question:")[0] not in second, "the question comes after all passages"
    assert {request.max_tokens for request in rig.engine.warmed} == {1}
    assert {request.priority for request in rig.engine.warmed} == {WARM_UP_PRIORITY}


@through
async def test_drafts_that_are_late_repeated_or_behind_their_search_are_ignored(rig: Rig) -> None:
    for revision in (1, 2, 2, 1, 2):
        rig.warmer.draft(draft(1, "abc", revision))
    await rig.settle()
    assert rig.warmed == []
    rig.warmer.searched(final(1))
    rig.warmer.draft(draft(1, "abc", 3))
    await rig.settle()
    assert rig.warmed == []


@through
async def test_without_room_nothing_is_warmed_and_prompts_take_the_room_of_warm_ups(
    rig: Rig,
) -> None:
    rig.room = 0
    await rig.drafts(1, "abc", "abc", "abc")
    assert rig.warmed == []
    rig.room, rig.engine.warm_ups_hang = 2, True
    for n in (2, 3, 4):
        await rig.drafts(n, "abc", "abc", "abc")
    assert len(rig.engine.warmed) == rig.warmer.in_flight == 2
    rig.room = 1
    rig.warmer.make_room(0)
    await rig.settle()
    assert rig.warmer.in_flight == 1
    assert rig.engine.cancelled == [f"{a_source(3).place}/warm-up"], "the newest goes first"


@through
async def test_another_prefix_and_the_end_of_the_search_cancel_a_warm_up(rig: Rig) -> None:
    rig.engine.warm_ups_hang = True
    await rig.drafts(1, "abc", "abc", "abc")
    for revision in (4, 5, 6):
        rig.warmer.draft(draft(1, "xbc", revision))
        await rig.settle()
    assert len(rig.engine.cancelled) == 1 and len(rig.engine.warmed) == 2
    rig.warmer.searched(final(1))
    await rig.settle()
    assert len(rig.engine.cancelled) == 2 and rig.warmer.in_flight == 0


@through
async def test_tokens_count_as_used_as_far_as_the_prompt_found_them_cached(rig: Rig) -> None:
    await rig.drafts(1, "abx", "aby", "abc")
    (warm,) = rig.engine.warmed
    prompt = (*warm.token_ids, 1, 2, 3)
    rig.warmer.searched(final(1))
    warmed = rig.warmer.answered(a_source(1).place, prompt, cached_tokens=5, wait_us=1)
    assert (rig.tokens("warmed_used"), rig.tokens("warmed_in_vain")) == (5, len(prompt) - 3 - 5)
    assert (warmed.used, warmed.in_vain) == (5, len(prompt) - 3 - 5)
    await rig.drafts(2, "abc", "abc", "abc")
    rig.warmer.answered(a_source(2).place, (9, 9), cached_tokens=0, wait_us=1)
    assert rig.tokens("warmed_used") == 5
    warmed = rig.warmer.answered(a_source(3).place, prompt, cached_tokens=5, wait_us=1)
    assert rig.tokens("warmed_used") == 5, "that query was not warmed"
    assert (warmed.used, warmed.in_vain) == (0, 0)


@partial(through, servers=2)
async def test_warm_ups_are_spread_and_a_prompt_takes_the_room_of_those_at_its_server(
    rig: Rig,
) -> None:
    for engine in rig.engines:
        engine.warm_ups_hang = True
    for n in (1, 2, 3, 4):
        await rig.drafts(n, "abc", "abc", "abc")
    assert [len(engine.warmed) for engine in rig.engines] == [2, 2]
    assert [rig.warmer.server_of(a_source(n).place) for n in (1, 2, 3, 4)] == [0, 1, 0, 1]
    assert rig.warmer.server_of(a_source(5).place) is None, "it has no drafts"
    rig.room = 1
    rig.warmer.make_room(1)
    await rig.settle()
    cancelled = [engine.cancelled for engine in rig.engines]
    assert cancelled == [[], [f"{a_source(4).place}/warm-up"]], "the newest goes first"


@partial(through, servers=2)
async def test_a_warm_up_goes_to_the_server_that_has_most_of_it_cached(rig: Rig) -> None:
    rig.cached = 1
    await rig.drafts(1, "abc", "abc", "abc")
    assert [len(engine.warmed) for engine in rig.engines] == [0, 1]
    assert rig.warmer.server_of(a_source(1).place) == 1


@through
async def test_tokens_that_a_warm_up_found_cached_are_not_counted(rig: Rig) -> None:
    rig.engine.warm_ups_cached = 2
    await rig.drafts(1, "abc", "abc", "abc")
    (warm,) = rig.engine.warmed
    warmed = rig.warmer.answered(a_source(1).place, warm.token_ids, cached_tokens=5, wait_us=1)
    assert (warmed.used, warmed.in_vain) == (3, len(warm.token_ids) - 5)


@through
async def test_a_warm_up_that_is_refused_is_counted_and_begun_again(rig: Rig) -> None:
    async def refuse(request: LlmRequest) -> LlmFinished:
        raise LlmRefusal("busy", "no place")

    warm, rig.engine.warm = rig.engine.warm, refuse  # type: ignore[method-assign]
    await rig.drafts(1, "abc", "abc", "abc")
    labels = {"outcome": "refused"}
    assert rig.registry.get_sample_value("carpool_warm_ups_total", labels) == 1
    assert rig.warmer.in_flight == 0
    rig.engine.warm = warm  # type: ignore[method-assign]
    rig.warmer.draft(draft(1, "abc", 4))
    await rig.settle()
    assert rig.warmed == [3]


@through
async def test_queries_that_are_never_answered_are_forgotten_and_counted(rig: Rig) -> None:
    await rig.drafts(0, "abc", "abc", "abc")
    (warm,) = rig.engine.warmed
    for n in range(1, SEARCHES_MAX):
        rig.warmer.draft(draft(n, "abc", 1))
    assert rig.tokens("warmed_in_vain") == 0
    rig.warmer.draft(draft(SEARCHES_MAX, "abc", 1))
    assert rig.tokens("warmed_in_vain") == len(warm.token_ids)


def test_a_prompt_ends_a_warm_up_that_has_its_place() -> None:
    engine = MemoryLlm(warm_ups_hang=True)
    settings = GeneratorSettings(passages_max=3, concurrency=1)
    with running(engine, settings) as run:
        for revision in (1, 2, 3):
            run.stage.draft(draft(7, "abc", revision))
        run.wait(lambda: len(engine.warmed) == 1)
        assert engine.cancelled == []
        run.offer(unit())
        run.wait_for_answers(1)
        run.wait(lambda: bool(engine.cancelled))
    assert engine.cancelled == [f"{a_source(7).place}/warm-up"]


def test_a_stage_warms_from_drafts_and_answers_as_ever() -> None:
    engine = MemoryLlm()
    with running(engine, SETTINGS) as run:
        for revision in (1, 2, 3):
            run.stage.draft(draft(7, "abc", revision))
        run.wait(lambda: len(engine.warmed) == 1)
        assert engine.requests == []
        run.offer(a_unit(7, final(7)))
        (answer,) = run.wait_for_answers(1)
        counted = (run.tokens("warmed_used"), run.tokens("warmed_in_vain"))
    (warm,) = engine.warmed
    assert answer.status == "ok" and answer.usage is not None
    usage = (answer.usage.warmed_tokens, answer.usage.warmed_in_vain_tokens)
    assert usage == counted == (0, len(warm.token_ids)), "this model caches whole prompts only"


def test_several_servers_are_not_warmed_unless_they_say_what_they_have_cached() -> None:
    engines = [MemoryLlm(), MemoryLlm()]
    with capture_logs() as logs, running(engines, SETTINGS) as run:
        for revision in (1, 2, 3):
            run.stage.draft(draft(7, "abc", revision))
        run.offer(unit())
        run.wait_for_answers(1)
    assert [engine.warmed for engine in engines] == [[], []]
    assert len([entry for entry in logs if "llm.kv_events" in entry["event"]]) == 1

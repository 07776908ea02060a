"""Warm-ups: what drafts begin with is computed while there is room, and is counted afterwards."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from carpool.telemetry.metrics import Metrics
from generator import prompts_in_progress
from generator.llm.protocol import LlmFinished, LlmRefusal, LlmRequest
from generator.llm.servers import LlmServers
from generator.plan.warm_ups import EngineLoad, Likely
from generator.prompts import load_templates, prepare_prompt
from generator.settings import GeneratorSettings
from generator.warmer import SEARCHES_MAX, WARM_UP_PRIORITY, Warmer
from schemas.record import ClusterId
from schemas.retrieval import Hit, Retrieval
from tests.clocks import HandClock
from tests.generator.memory_llm import MemoryLlm
from tests.generator.stage import Running, running, unit
from tests.records import a_query, a_retrieval, a_source, a_unit

SETTINGS = GeneratorSettings(passages_max=3)
TEMPLATES = load_templates(SETTINGS)


@pytest.fixture(autouse=True)
def warmed_from_the_first_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` waits until it knows that searches take long."""
    monkeypatch.setattr(prompts_in_progress, "Auto", lambda policy: policy)


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
    """A warmer and its event loop, with room for `room` warm-ups at each of `servers`.

    `cached`: the server that is said to have most of every prefix.
    """

    def __init__(self, servers: int = 1) -> None:
        self.loop = asyncio.new_event_loop()
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
            block_tokens=lambda server: self.block_tokens,
            metrics=Metrics(self.registry),
            clock=HandClock(),
        )

    def _choose(self, ids: tuple[int, ...], warm_ups: Sequence[int]) -> int:
        if ids and self.cached is not None:
            return self.cached
        return min(range(len(self.engines)), key=lambda server: warm_ups[server])

    def _run(self, work: Any) -> asyncio.Task[None]:
        task = self.loop.create_task(work)
        self.tasks.append(task)
        return task

    def drafts(self, n: int, *founds: str) -> None:
        for revision, passages in enumerate(founds, 1):
            self.warmer.draft(draft(n, passages, revision))
            self.settle()

    def settle(self) -> None:
        for _ in range(20):
            self.loop.run_until_complete(asyncio.sleep(0))

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


@pytest.fixture
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    rig = Rig(getattr(request, "param", 1))
    yield rig
    for task in rig.tasks:
        task.cancel()
    rig.settle()
    rig.loop.close()


def test_a_warm_up_ends_with_a_full_block(rig: Rig) -> None:
    rig.drafts(1, "abc", "abc", "abc")
    (whole,) = (request.token_ids for request in rig.engine.warmed)
    rig.block_tokens = 5
    rig.drafts(2, "abc", "abc", "abc")
    cut = rig.engine.warmed[-1].token_ids
    assert cut == whole[: len(whole) // 5 * 5]
    assert len(whole) % 5, "the test cuts something"


def test_a_prefix_is_warmed_once_and_grows(rig: Rig) -> None:
    rig.drafts(1, "abx", "aby", "abc", "abc", "abc", "abc")
    assert rig.warmed == [2, 3]
    first, second = (request.token_ids for request in rig.engine.warmed)
    assert second[: len(first)] == first
    assert rig.ids("Question:")[0] not in second, "the question comes after all passages"
    assert {request.max_tokens for request in rig.engine.warmed} == {1}
    assert {request.priority for request in rig.engine.warmed} == {WARM_UP_PRIORITY}


def test_drafts_that_are_late_repeated_or_behind_their_search_are_ignored(rig: Rig) -> None:
    for revision in (1, 2, 2, 1, 2):
        rig.warmer.draft(draft(1, "abc", revision))
    rig.settle()
    assert rig.warmed == []
    rig.warmer.searched(final(1))
    rig.warmer.draft(draft(1, "abc", 3))
    rig.settle()
    assert rig.warmed == []


def test_without_room_nothing_is_warmed(rig: Rig) -> None:
    rig.room = 0
    rig.drafts(1, "abc", "abc", "abc")
    assert rig.warmed == []
    rig.room, rig.engine.warm_ups_hang = 2, True
    for n in (2, 3, 4):
        rig.drafts(n, "abc", "abc", "abc")
    assert len(rig.engine.warmed) == sum(rig.warmer._at_servers()) == 2


def test_another_prefix_and_the_end_of_the_search_cancel_a_warm_up(rig: Rig) -> None:
    rig.engine.warm_ups_hang = True
    rig.drafts(1, "abc", "abc", "abc")
    for revision in (4, 5, 6):
        rig.warmer.draft(draft(1, "xbc", revision))
        rig.settle()
    assert len(rig.engine.cancelled) == 1 and len(rig.engine.warmed) == 2
    rig.warmer.searched(final(1))
    rig.settle()
    assert len(rig.engine.cancelled) == 2 and sum(rig.warmer._at_servers()) == 0


def test_tokens_count_as_used_as_far_as_the_prompt_found_them_cached(rig: Rig) -> None:
    rig.drafts(1, "abx", "aby", "abc")
    (warm,) = rig.engine.warmed
    prompt = (*warm.token_ids, 1, 2, 3)
    rig.warmer.searched(final(1))
    warmed = rig.warmer.answered(a_source(1).place, prompt, cached_tokens=5, wait_us=1)
    assert (rig.tokens("warmed_used"), rig.tokens("warmed_in_vain")) == (5, len(prompt) - 3 - 5)
    assert (warmed.used, warmed.in_vain) == (5, len(prompt) - 3 - 5)
    warmed = rig.warmer.answered(a_source(3).place, prompt, cached_tokens=5, wait_us=1)
    assert (warmed.used, warmed.in_vain) == (0, 0), "that query was not warmed"
    rig.engine.warm_ups_cached = 2
    rig.drafts(2, "abc", "abc", "abc")
    ids = rig.engine.warmed[-1].token_ids
    warmed = rig.warmer.answered(a_source(2).place, ids, cached_tokens=5, wait_us=1)
    assert (warmed.used, warmed.in_vain) == (3, len(ids) - 5), "2 were cached before"


@pytest.mark.parametrize("rig", [2], indirect=True)
def test_warm_ups_are_spread_and_a_prompt_takes_the_room_of_those_at_its_server(
    rig: Rig,
) -> None:
    for engine in rig.engines:
        engine.warm_ups_hang = True
    for n in (1, 2, 3, 4):
        rig.drafts(n, "abc", "abc", "abc")
    assert [len(engine.warmed) for engine in rig.engines] == [2, 2]
    assert [rig.warmer.server_of(a_source(n).place) for n in (1, 2, 3, 4)] == [0, 1, 0, 1]
    assert rig.warmer.server_of(a_source(5).place) is None, "it has no drafts"
    rig.room = 1
    rig.warmer.make_room(1)
    rig.settle()
    cancelled = [engine.cancelled for engine in rig.engines]
    assert cancelled == [[], [f"{a_source(4).place}/warm-up"]], "the newest goes first"
    rig.cached, rig.room = 1, 8
    rig.drafts(5, "abc", "abc", "abc")
    assert rig.warmer.server_of(a_source(5).place) == 1, "it has most of the prefix"


def test_a_warm_up_that_is_refused_is_counted_and_begun_again(rig: Rig) -> None:
    async def refuse(request: LlmRequest) -> LlmFinished:
        raise LlmRefusal("busy", "no place")

    warm, rig.engine._warm = rig.engine._warm, refuse  # type: ignore[method-assign]
    rig.drafts(1, "abc", "abc", "abc")
    labels = {"outcome": "refused"}
    assert rig.registry.get_sample_value("carpool_warm_ups_total", labels) == 1
    assert sum(rig.warmer._at_servers()) == 0
    rig.engine._warm = warm  # type: ignore[method-assign]
    rig.warmer.draft(draft(1, "abc", 4))
    rig.settle()
    assert rig.warmed == [3]


def test_queries_that_are_never_answered_are_forgotten_and_counted(rig: Rig) -> None:
    rig.drafts(0, "abc", "abc", "abc")
    (warm,) = rig.engine.warmed
    for n in range(1, SEARCHES_MAX):
        rig.warmer.draft(draft(n, "abc", 1))
    assert rig.tokens("warmed_in_vain") == 0
    rig.warmer.draft(draft(SEARCHES_MAX, "abc", 1))
    assert rig.tokens("warmed_in_vain") == len(warm.token_ids)


def send_drafts(run: Running) -> None:
    for revision in (1, 2, 3):
        run.stage.draft(draft(7, "abc", revision))


def test_a_prompt_ends_a_warm_up_that_has_its_place() -> None:
    engine = MemoryLlm(warm_ups_hang=True)
    with running(engine, GeneratorSettings(passages_max=3, concurrency=1)) as run:
        send_drafts(run)
        run.wait(lambda: len(engine.warmed) == 1)
        run.ask(unit())
        run.wait(lambda: bool(engine.cancelled))
    assert engine.cancelled == [f"{a_source(7).place}/warm-up"]


def test_a_stage_warms_from_drafts_and_answers_as_ever() -> None:
    engine = MemoryLlm()
    with running(engine, SETTINGS) as run:
        send_drafts(run)
        run.wait(lambda: len(engine.warmed) == 1)
        assert engine.requests == []
        (answer,) = run.ask(a_unit(7, final(7)))
        counted = (run.tokens("warmed_used"), run.tokens("warmed_in_vain"))
    (warm,) = engine.warmed
    assert answer.status == "ok" and answer.usage is not None
    usage = (answer.usage.warmed_tokens, answer.usage.warmed_in_vain_tokens)
    assert usage == counted == (0, len(warm.token_ids)), "this model caches whole prompts only"


def test_several_servers_are_not_warmed_unless_they_say_what_they_have_cached() -> None:
    engines = [MemoryLlm(), MemoryLlm()]
    with capture_logs() as logs, running(engines, SETTINGS) as run:
        send_drafts(run)
        run.ask(unit())
    assert [engine.warmed for engine in engines] == [[], []]
    assert len([entry for entry in logs if "llm.kv_events" in entry["event"]]) == 1

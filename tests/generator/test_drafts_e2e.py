"""Drafts through real brokers: a slow search, warm-ups, and a prompt with warm passages."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bench.core.stack import Stack
from bench.reliability.slow_searcher import command
from carpool.testing.llm_server import LlmServer
from carpool.testing.prefix_cache import BLOCK_TOKENS
from schemas.answer import Answer
from schemas.codec import encode
from schemas.topics import ANSWERS, QUERIES, RETRIEVAL_DRAFTS
from searcher.passages.open import PASSAGE_BUFFERS_BYTES
from tests.e2e.support import WORDS, Publisher, build_index, quick_settings, read_all, read_to_end
from tests.generator.test_e2e import answers_in
from tests.records import a_query

NPROBE = 12
CLUSTER_BYTES = 8_192
SEARCH_S = 1.5
QUESTIONS = 11
"""Of these `auto` warms every second one, once it knows that searches take long."""


def services(broker: str, folder: Path, llm: LlmServer, **more: str) -> Stack:
    settings = quick_settings() | {
        "CARPOOL_SEARCHER_SEARCH_MODE": "exact",
        # Room for three clusters: every search reads nearly all of its own.
        "CARPOOL_SEARCHER_BUDGET_BYTES": str(PASSAGE_BUFFERS_BYTES + 4 * CLUSTER_BYTES),
        "CARPOOL_LLM_MODEL": llm.model,
    }
    return Stack(
        bootstrap=broker,
        index_dir=build_index(folder, has_codes=False),  # searches with codes send no drafts
        work_dir=folder,
        settings=settings | more,
        llm_url=llm.url,
        commands={"searcher": command(NPROBE * CLUSTER_BYTES / SEARCH_S)},
    )


def ask_one_after_another(broker: str) -> list[Answer]:
    publisher = Publisher(broker)
    for n in range(QUESTIONS):
        query = a_query(f"q-{n}", f"What of the {WORDS[n]} and the {WORDS[-n]}?", nprobe=NPROBE)
        value, headers = encode(query, event_id=f"q-{n}", source="test", time_us=0)
        publisher.send(QUERIES.name, value, headers=headers)
        read_all(broker, ANSWERS.name, until=lambda found, n=n: len(found) > n)
    time.sleep(0.5)  # whatever comes twice
    return answers_in(read_to_end(broker, ANSWERS.name))


@pytest.mark.slow
def test_a_prompt_finds_the_passages_warm_that_its_search_found_early(
    fresh_broker: str, tmp_path: Path
) -> None:
    on = {"CARPOOL_SEARCHER_DRAFTS_AFTER_MS": "100"}
    with (
        LlmServer(caches_prefixes=True) as llm,
        services(fresh_broker, tmp_path, llm, **on) as stack,
    ):
        answers = ask_one_after_another(fresh_broker)
        generator = stack["generator"]
        done = generator.metric("carpool_warm_ups_total", outcome="done")
        used = generator.metric("carpool_tokens_total", kind="warmed_used")
        sent = stack["searcher"].metric("carpool_drafts_total")
    drafts = read_to_end(fresh_broker, RETRIEVAL_DRAFTS.name)
    assert len(drafts) == sent > 0
    assert [each.status for each in answers] == ["ok"] * QUESTIONS
    assert done > 0 and used > 0
    assert used == sum(each.usage.warmed_tokens for each in answers if each.usage)
    completed = llm.requests.completed_by_id
    assert done == sum(completed[name] for name in completed if name.endswith("/warm-up"))
    cached = [each.usage.cached_tokens if each.usage else 0 for each in answers]
    # The system message and the begin of a passage are in every prompt, so only more counts.
    assert max(cached) - min(cached) >= 2 * BLOCK_TOKENS, cached

"""Questions a second of search and LLM together, on one GPU, on virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import cycle

from bench.generation.gpu_search import Int64, ShardedSearch
from bench.generation.paged_engine import PagedEngine, Sequence
from searcher.plan.hot_set import BATCH_MAX

BATCH = BATCH_MAX
"""Queries that are searched at once: there is always a backlog."""
MEASURED_FROM = 0.3
"""Of the answers: before, the LLM fills up."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question: the clusters that it probes, the tokens of its prompt and of its answer."""

    clusters: Int64
    prompt_tokens: int
    answer_tokens: int


def answers_per_s(
    questions: Many[Question], search: ShardedSearch | None, engine: PagedEngine
) -> float:
    """Returns the answers a second while questions never end: `questions` come again and again.

    The searcher takes `BATCH` questions at a time, and does not wait for the LLM. As many answers
    as `questions` are counted. Without `search`: the rate of the LLM alone.
    """
    begin, end = int(MEASURED_FROM * len(questions)), len(questions)
    coming = _searched(questions, search)
    at_us, batch = next(coming)
    now_us, done = 0.0, 0
    began: tuple[float, int] | None = None
    while done < end:
        if engine.is_idle:
            now_us = max(now_us, at_us)
        while at_us <= now_us and engine.waiting < BATCH:
            for one in batch:
                engine.add(
                    Sequence(prompt_tokens=one.prompt_tokens, answer_tokens=one.answer_tokens)
                )
            at_us, batch = next(coming)
        took_us, ended = engine.step()
        now_us, done = now_us + took_us, done + ended
        if began is None and done >= begin:
            began = now_us, done
    assert began is not None, "some answers are not measured"
    return (done - began[1]) * 1e6 / (now_us - began[0])


def _searched(
    questions: Many[Question], search: ShardedSearch | None
) -> Iterator[tuple[float, Many[Question]]]:
    """Yields when each batch is searched, us, and its questions."""
    now_us = 0.0
    for at in cycle(range(0, len(questions), BATCH)):
        batch = questions[at : at + BATCH]
        if search is not None:
            now_us += search.batch_us([one.clusters for one in batch])
        yield now_us, batch

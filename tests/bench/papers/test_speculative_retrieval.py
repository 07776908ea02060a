"""Texts of workflows, and what announced clusters save."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from bench.data.grown import Collection
from bench.papers.hedrarag.nearness import final_at, history, texts_of
from bench.papers.hedrarag.speculative_retrieval import PLANES, Root, alone, busy
from bench.papers.hedrarag.texts import run_program
from carpool.workflow.programs.irg import irg
from carpool.workflow.steps import Found
from generator.plan.prompt import FilledPrompt

SIZES = [10] * 8
KEPT = 40
"""Memory of four clusters: what is read ahead takes at most half of it."""


def test_programs_are_run_and_each_later_search_is_compared_with_the_one_before() -> None:
    seen: list[list[str]] = []

    def search(text: str) -> Found:
        return Found()

    def write(prompt: FilledPrompt, tokens_max: int) -> str:
        return f"1 of {tokens_max}"

    def encode(texts: Sequence[str]) -> np.ndarray:
        seen.append(list(texts))
        return np.zeros((len(texts), 2), np.float32)

    ran = run_program(irg, "a", search, write)
    assert (ran.question, ran.searched) == ("a", ["a", "a 1 of 96", "a 1 of 96"])
    assert ran.written == ["1 of 96", "1 of 96"]
    texts = texts_of([ran], encode)
    assert texts.rounds == 2
    assert next(iter(texts.instead)) == "question or last search"
    assert seen[0] == ["a", "a 1 of 96"]
    assert seen[2] == ["a 1 of", "a 1 of"], "half of the text"
    assert seen[-1] == ["a 1 of 96", "a 1 of 96"]


@pytest.mark.parametrize("plane", PLANES)
def test_a_right_guess_is_read_before_the_search_and_a_wrong_one_costs_reads(plane: str) -> None:
    def of(guess: Sequence[int]) -> list[float]:
        return alone(plane, [Root(None, [(guess, (0, 1))])], SIZES, KEPT)

    assert of(()) == [1, 1]
    assert of((0, 1)) == [0, 1]
    assert of((6, 7)) == [1, 2]
    found_before = Root((0, 1), [((), (1, 2))])
    assert alone(plane, [found_before], SIZES, KEPT) == [0.5, 0.5]


@pytest.mark.parametrize("plane", PLANES)
def test_a_busy_searcher_reads_nothing_ahead(plane: str) -> None:
    """Two searches a root and six others in each of nine windows, of a cluster each."""
    others = [[(at % 8,) for at in range(6)] for _ in range(9)]
    all_fits = busy(plane, [Root((0,), [((7,), (1,))])], others, SIZES, 80)
    assert all_fits == pytest.approx(6 / 56), "each of the six clusters is read once"


def test_an_order_is_final_where_its_last_change_is() -> None:
    corpus = np.eye(4, dtype=np.float32)
    clusters = np.array([0, 1, 2, 3])
    collection = Collection(corpus, corpus, clusters, [np.array([at]) for at in range(4)], 4)
    vector = np.array([0.9, 0.3, 0.2, 0.1], np.float32)
    assert final_at(collection, np.array([0, 1, 2, 3]), vector) == 0.75, "three passages"
    assert final_at(collection, np.array([3, 2, 1, 0]), vector) == 1


def test_the_same_search_again_finds_all_in_its_history() -> None:
    rng = np.random.default_rng(0)
    corpus = rng.normal(size=(64, 8)).astype(np.float32)
    corpus /= np.linalg.norm(corpus, axis=1, keepdims=True)
    clusters = np.argmax(corpus, axis=1).astype(np.int64)
    rows_of = [np.flatnonzero(clusters == at) for at in range(8)]
    collection = Collection(corpus, np.eye(8, dtype=np.float32), clusters, rows_of, 8)
    found = history(collection, corpus[:3], corpus[:3])
    assert all(found[f"{name}"] == 1 for name in found if name[:2] in ("1:", "2:", "3:"))


@pytest.mark.parametrize("plane", PLANES)
def test_what_is_announced_stays_in_memory_longer(plane: str) -> None:
    """Memory of two clusters. Between both searches of the first root, others want four."""
    others = [[(2 + at % 4,)] for at in range(8)]
    roots = [Root((0,), [(guess, (0,))]) for guess in ((), (0,))]
    read = [busy(plane, [root], others, SIZES, 2 * SIZES[0]) for root in roots]
    assert read == pytest.approx([1, 9 / 10])

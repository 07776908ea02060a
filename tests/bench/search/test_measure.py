"""The measurement: windows and clients, and the search for settings."""

from __future__ import annotations

import numpy as np
import pytest

from bench.data.exact import BestRows
from bench.search.child import ChildRequest, measure, tune
from bench.search.contestants.contestant import Contestant, Float32, Int64, SearchData
from tests.bench.helpers import unit_rows

QUERIES = unit_rows(np.random.default_rng(3), 50, 16)


class Counting(Contestant):
    """Finds as many of ten rows as the setting says; keeps the sizes of its windows."""

    settings = (1, 2, 4, 7, 8)

    def __init__(self) -> None:
        self.asked: list[int] = []

    def build(self, data: SearchData) -> None:
        pass

    def open(self, data: SearchData) -> None:
        pass

    def search(self, queries: Float32, setting: int) -> Int64:
        self.asked.append(len(queries))
        found = np.arange(10)
        found[setting:] = -1
        return found[None].repeat(len(queries), 0)


@pytest.mark.parametrize(("window", "clients"), [(8, 1), (1, 4), (50, 2)])
def test_every_query_is_asked_once_and_every_answer_is_kept(window: int, clients: int) -> None:
    contestant = Counting()
    request = ChildRequest(setting=7, window=window, clients=clients)
    figures, ids = measure(contestant, QUERIES, request)
    assert figures.queries == sum(contestant.asked) == 50
    assert figures.latency_ms.count == len(contestant.asked) == -(-50 // window)
    assert (ids == [*range(7), -1, -1, -1]).all() and ids.shape == (50, 10)


def test_the_lowest_setting_that_reaches_a_recall_is_found() -> None:
    best = BestRows(np.arange(10)[None].repeat(50, 0), np.ones((50, 10), np.float32))
    assert tune(Counting(), QUERIES, best, (0.35, 0.4, 0.8, 0.81)) == ((4, 4, 8, None), 0.8)

"""The measurement: windows, and the audit of answers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from bench.search.child import measure, windows_of
from bench.search.contestants.contestant import (
    AskedWindow,
    ContestantError,
    FoundRows,
    SearchData,
)


class Echo:
    """Finds the queries' own numbers; `fault`: what it does wrong."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def open(self, data: SearchData) -> None:
        pass

    def search(self, window: AskedWindow) -> Iterator[FoundRows]:
        for at in range(len(window.vectors)):
            if self.fault == "forgets" and not at:
                continue
            number = window.first + at
            rows = np.full(99 if self.fault == "too many" else 1, number)
            yield FoundRows(number, rows)
            if self.fault == "repeats":
                yield FoundRows(number, rows)

    def close(self) -> None:
        pass


def test_every_answer_is_measured_and_kept(data: SearchData) -> None:
    figures, ids = measure(Echo(), data, 8)
    assert figures.queries == figures.latency_ms.count == 50
    assert ids[:, 0].tolist() == list(range(50))
    assert (ids[:, 1:] == -1).all()


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("forgets", "1 queries of a window were not answered"),
        ("repeats", "or answered"),
        ("too many", "over top_k"),
    ],
)
def test_a_contestant_that_breaks_the_rules_is_caught(
    data: SearchData, fault: str, error: str
) -> None:
    with pytest.raises(ContestantError, match=error):
        measure(Echo(fault), data, 8)


def test_a_window_shows_the_next_four(data: SearchData) -> None:
    windows = list(windows_of(data, 8))
    assert [len(window.vectors) for window in windows] == [8, 8, 8, 8, 8, 8, 2]
    assert [len(window.ahead) for window in windows] == [4, 4, 4, 3, 2, 1, 0]
    assert (windows[0].ahead[0] == data.probes[8:16]).all()

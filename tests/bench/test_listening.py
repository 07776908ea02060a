"""A topic that one broker made is not known to all at once; one that nobody made is said to be
missing.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bench.core import topic_recorder as listening
from bench.core.topic_recorder import end_offsets
from carpool.errors import RetryableError


class Brokers:
    """A consumer's look-ups, at brokers that hear of the topic at the `known_at`-th question."""

    def __init__(self, known_at: float) -> None:
        self._known_at = known_at
        self.asked = 0

    def list_topics(self, timeout: float) -> Any:
        self.asked += 1
        topics = (
            {"a": SimpleNamespace(partitions={0: None, 1: None})}
            if self.asked >= self._known_at
            else {}
        )
        return SimpleNamespace(topics=topics)

    def get_watermark_offsets(self, place: Any, timeout: float) -> tuple[int, int]:
        return 0, 7


def test_a_topic_that_a_broker_has_not_heard_of_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listening, "POLL_S", 0.001)
    brokers: Any = Brokers(known_at=3)
    assert [place.offset for place in end_offsets(brokers, "a")] == [7, 7]
    assert brokers.asked == 3


def test_a_topic_that_nobody_made_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "POLL_S", 0.001)
    monkeypatch.setattr(listening, "MISSING_S", 0.01)
    brokers: Any = Brokers(known_at=float("inf"))
    with pytest.raises(RetryableError, match="carpool topics create"):
        end_offsets(brokers, "a")

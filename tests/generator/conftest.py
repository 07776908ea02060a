"""What tests of the generator share."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from carpool.kafka.topic_table import TopicTable
from tests.generator.vllm_server import VllmServer, running_vllm


@pytest.fixture(autouse=True)
def quick_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that refuses pauses for milliseconds, and a prompt that is refused."""
    monkeypatch.setattr("generator.plan.health.BACKOFF_US_MIN", 1_000)
    monkeypatch.setattr("generator.plan.health.BACKOFF_US_MAX", 2_000)
    monkeypatch.setattr("generator.plan.refusals.PAUSE_US_MIN", 1_000)
    monkeypatch.setattr("generator.plan.refusals.PAUSE_US_MAX", 2_000)


@pytest.fixture(scope="session")
def vllm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """A real vLLM server."""
    with running_vllm(tmp_path_factory.mktemp("vllm") / "vllm.log") as server:
        yield server


@pytest.fixture(scope="module", autouse=True)
def tables_stepped_by_hand() -> Iterator[None]:
    """No table reads its topic on a thread of its own."""
    with patch.object(TopicTable, "start", lambda self: None):
        yield

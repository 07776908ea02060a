"""The test broker stands still when it is said to."""

from __future__ import annotations

from pathlib import Path

import pytest

from carpool.testing.kafka import KafkaServer

pytestmark = pytest.mark.kafka


def states(server: KafkaServer) -> set[str]:
    """The states of its threads, as the kernel tells them."""
    tasks = Path(f"/proc/{server.pid}/task").iterdir()
    return {(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks}


def test_a_paused_broker_has_no_thread_that_runs_on(kafka_server: KafkaServer) -> None:
    for _ in range(20):
        kafka_server.pause()
        kafka_server.pause()
        try:
            assert states(kafka_server) == {"T"}
        finally:
            kafka_server.resume()
        assert states(kafka_server) != {"T"}

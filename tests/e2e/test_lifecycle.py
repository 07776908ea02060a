"""On a broker without transactions: SIGTERM drains, SIGKILL loses nothing, a second SIGTERM ends
the process; a wrong deployment is refused at start.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from bench.core.stack import SERVICES, Stack
from carpool.testing.llm_server import LlmFault, LlmServer
from schemas.topics import ANSWERS, QUERIES
from tests.e2e.support import MODEL, Publisher, question, read_all, read_to_end, services
from tests.waiting import WAIT_S, wait_until

BURST = 60


class Asking:
    """Publishes bursts of questions to a stack, and reads their answers."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.rng, self.publisher = random.Random(3), Publisher(stack.bootstrap)
        self.asked: list[str] = []

    def burst(self, count: int) -> None:
        for _ in range(count):
            self.asked.append(f"q-{len(self.asked)}")
            body = {"query_id": self.asked[-1], "text": question(self.rng)}
            self.publisher.queue(QUERIES.name, json.dumps(body).encode(), key=self.asked[-1])
        self.publisher.flush()

    def burst_until_taken(self, count: int, service: str) -> None:
        """Publishes a burst, and returns when the service has taken some of it."""
        process, name = self.stack[service], "carpool_records_consumed_total"
        before = process.metric(name)
        self.burst(count)
        wait_until(lambda: process.metric(name) > before, f"{service} takes records")

    def answers(self) -> Counter[str]:
        """How often each question is answered, once all are."""
        read_all(
            self.stack.bootstrap,
            ANSWERS.name,
            until=lambda found: set(self.asked) <= {each.body["query_id"] for each in found},
        )
        return self.answers_so_far()

    def answers_so_far(self) -> Counter[str]:
        found = read_to_end(self.stack.bootstrap, ANSWERS.name)
        return Counter(each.body["query_id"] for each in found)


@pytest.mark.slow
def test_services_that_are_stopped_and_killed_at_work_lose_nothing(
    bootstrap: str, small_index: Path, tmp_path: Path
) -> None:
    one_at_a_time = {"GENERATOR_CONCURRENCY": "1"}  # some are left at the broker
    with (
        LlmServer(latency_ms=100) as llm,
        services(bootstrap, small_index, tmp_path, llm, **one_at_a_time) as stack,
    ):
        asking = Asking(stack)
        asking.burst_until_taken(BURST, "generator")
        assert stack["generator"].stop() == 0
        drained = asking.answers_so_far()
        assert 0 < drained.total() < BURST, "it ended in the middle of the work"
        assert drained.total() == llm.requests.completed, "what was generated was written"
        stack["generator"].start()
        stack["generator"].wait_ready()
        assert asking.answers() == Counter(asking.asked), "nothing lost, nothing twice"

        for service in reversed(SERVICES):
            asking.burst_until_taken(BURST // 3, service)
            stack[service].kill()
            stack[service].start()
        answered = asking.answers()
        assert answered.keys() == set(asking.asked)
        assert answered.total() - len(answered) <= BURST, "no more than was in flight"

        llm.fault = LlmFault(mode="hang")
        asking.burst_until_taken(5, "generator")
        pid = stack["generator"].pid
        os.kill(pid, signal.SIGTERM)
        time.sleep(1.0)
        assert stack["generator"].is_running, "it waits for the running answers"
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not stack["generator"].is_running, "the generator ends")
        assert stack["generator"].stop() == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"INDEX_DIR": "/nowhere/index"}, ["/nowhere/index", "carpool index build"]),
        ({"KAFKA_LANES": "7"}, ["would lose work", "kafka.lanes is 7"]),
    ],
    ids=["index", "topics"],
)
def test_a_wrong_deployment_is_refused_at_start_with_what_to_do(
    bootstrap: str, small_index: Path, settings: dict[str, str], says: list[str]
) -> None:
    environ = {it: value for it, value in os.environ.items() if not it.startswith("CARPOOL_")}
    ours = {
        "KAFKA_BOOTSTRAP": bootstrap,
        "KAFKA_REQUEST_TIMEOUT_MS": "30000",  # a busy machine's broker answers late
        "INDEX_DIR": str(small_index),
        "EMBEDDING_MODEL": MODEL,
        **settings,
    }
    done = subprocess.run(
        [sys.executable, "-m", "carpool", "searcher"],
        env=environ | {f"CARPOOL_{name}": value for name, value in ours.items()},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode in (1, 2), done.stderr
    last = " ".join(done.stderr.split("error:")[-1].split())
    for text in says:
        assert text in last, done.stderr
    assert "Traceback" not in done.stderr

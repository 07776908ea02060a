"""SIGTERM drains, a second one ends the process; a wrong deployment is refused at start."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.core.stack import Stack
from carpool.kafka.admin import create_topics
from carpool.kafka.embedded import EmbeddedBroker
from carpool.kafka.settings import KafkaSettings
from carpool.testing.llm_server import LlmFault, LlmServer
from schemas.topics import ANSWERS, QUERIES
from tests.e2e.support import MODEL, Publisher, question, quick_settings, read_all, read_to_end
from tests.waiting import WAIT_S, wait_until


def publish(bootstrap: str, count: int) -> set[str]:
    rng, publisher = random.Random(3), Publisher(bootstrap)
    ids = [f"q-{number}" for number in range(count)]
    for query_id in ids:
        publisher.queue(
            QUERIES.name,
            json.dumps({"query_id": query_id, "text": question(rng)}).encode(),
            key=query_id,
        )
    publisher.flush()
    return set(ids)


def wait_for_work(stack: Stack, service: str) -> None:
    wait_until(lambda: stack[service].metric("carpool_units_in_flight"), f"{service} has work")


@pytest.fixture
def broker(tmp_path: Path) -> str:
    with EmbeddedBroker() as embedded:
        create_topics(KafkaSettings(bootstrap=embedded.bootstrap))
        yield embedded.bootstrap


@pytest.mark.slow
def test_sigterm_finishes_units_in_flight_and_repeats_nothing(
    broker: str, small_index: Path, tmp_path: Path
) -> None:
    with LlmServer(latency_ms=500) as llm:
        few_in_flight = {"CARPOOL_GENERATOR_CONCURRENCY": "1"}  # some are left at the broker
        settings = quick_settings() | {"CARPOOL_LLM_MODEL": llm.model} | few_in_flight
        with Stack(
            bootstrap=broker,
            index_dir=small_index,
            work_dir=tmp_path,
            settings=settings,
            llm_url=llm.url,
        ) as stack:
            wanted = publish(broker, 60)
            wait_for_work(stack, "generator")
            assert stack["generator"].stop() == 0
            answered = [found.body["query_id"] for found in read_to_end(broker, ANSWERS.name)]
            assert 0 < len(answered) < 60, "it ended in the middle of the work"
            assert len(answered) == len(set(answered)) == llm.requests.completed, (
                "what was generated was written, once"
            )
            stack["generator"].start()
            stack["generator"].wait_ready()
            found = read_all(broker, ANSWERS.name, until=lambda all_: len(all_) >= 60)
    assert sorted(each.body["query_id"] for each in found) == sorted(wanted), (
        "nothing lost, nothing twice"
    )


@pytest.mark.slow
def test_a_second_sigterm_ends_the_process_immediately(
    broker: str, small_index: Path, tmp_path: Path
) -> None:
    with LlmServer() as llm:
        llm.fault = LlmFault(mode="hang")
        settings = quick_settings() | {"CARPOOL_LLM_MODEL": llm.model}
        with Stack(
            bootstrap=broker,
            index_dir=small_index,
            work_dir=tmp_path,
            settings=settings,
            llm_url=llm.url,
        ) as stack:
            publish(broker, 5)
            wait_for_work(stack, "generator")
            pid = stack["generator"].pid
            os.kill(pid, signal.SIGTERM)
            time.sleep(1.0)
            assert stack["generator"].is_running, "it waits for the running answers"
            os.kill(pid, signal.SIGTERM)
            assert stack["generator"].wait(WAIT_S) == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("service", "settings", "says"),
    [
        (
            "searcher",
            {"CARPOOL_INDEX_DIR": "/nowhere/index"},
            ["/nowhere/index", "carpool index build"],
        ),
        ("grouper", {"CARPOOL_EMBEDDING_MODEL": "hashing:32"}, ["hashing:64", "rebuild the index"]),
        ("searcher", {"CARPOOL_SEARCHER_BUDGET_BYTES": "4096"}, ["budget_bytes"]),
        (
            "searcher",
            {"CARPOOL_KAFKA_BOOTSTRAP": "127.0.0.1:1", "CARPOOL_KAFKA_REQUEST_TIMEOUT_MS": "1000"},
            ["127.0.0.1:1", "no broker answers"],
        ),
    ],
)
def test_a_wrong_deployment_is_refused_at_start_with_what_to_do(
    embedded_bootstrap: str,
    small_index: Path,
    service: str,
    settings: dict[str, str],
    says: list[str],
) -> None:
    create_topics(KafkaSettings(bootstrap=embedded_bootstrap))
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith("CARPOOL_")
    } | {
        "CARPOOL_KAFKA_BOOTSTRAP": embedded_bootstrap,
        "CARPOOL_KAFKA_REQUEST_TIMEOUT_MS": "30000",  # a busy machine's broker answers late
        "CARPOOL_INDEX_DIR": str(small_index),
        "CARPOOL_EMBEDDING_MODEL": MODEL,
        **settings,
    }
    done = subprocess.run(
        [sys.executable, "-m", "carpool", service],
        env=environ,
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

"""Services whose host's clock is wrong when they start, and is then set right."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path

import pytest

from bench.core.stack import SERVICES, Stack
from carpool.kafka.admin import create_topics
from carpool.kafka.settings import KafkaSettings
from carpool.testing.llm_server import LlmServer
from schemas.record import Headers
from schemas.topics import ANSWERS, QUERIES
from tests.e2e.support import LoggedRecord, Publisher, at_least, quick_settings, read_all

HOUR_S = 3_600
EACH = 10
SHIFTED_CLOCK = """
import os, time
_time_ns = time.time_ns
def _shifted_ns():
    with open(os.environ["CLOCK_SHIFT_FILE"]) as file:
        return _time_ns() + int(file.read()) * 10**9
time.time_ns, time.time = _shifted_ns, lambda: _shifted_ns() / 1e9
"""


class Clocks:
    """The clock of Python in the services, which a test sets."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "shift"
        (folder / "sitecustomize.py").write_text(SHIFTED_CLOCK)
        self.variables = {
            "CLOCK_SHIFT_FILE": str(self._file),
            "PYTHONPATH": os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", ""))),
        }
        self.set_ahead(0)

    def set_ahead(self, shift_s: int) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(str(shift_s))
        new.replace(self._file)


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("shift_s", [-HOUR_S, HOUR_S, 10 * 365 * 24 * HOUR_S])
def test_services_go_on_when_a_wrong_clock_is_set_right_and_no_answer_is_paid_twice(
    kafka_bootstrap: str, small_index: Path, tmp_path: Path, shift_s: int
) -> None:
    kafka = KafkaSettings(bootstrap=kafka_bootstrap, prefix=f"clock{shift_s}", partitions=2)
    create_topics(kafka)
    clocks, publisher = Clocks(tmp_path), Publisher(kafka_bootstrap)
    published: list[str] = []

    def ask(name: str, headers: Headers = ()) -> None:
        for number in range(EACH):
            published.append(f"{name}-{number}")
            body = {"query_id": published[-1], "text": f"what of {published[-1]}?"}
            value = json.dumps(body).encode()
            publisher.queue(
                kafka.broker_topic(QUERIES.name), value, key=published[-1], headers=headers
            )
        publisher.flush()

    def in_time() -> Headers:
        return (("rag-deadline-ms", str(int(time.time() * 1_000) + 60_000).encode()),)

    def answers() -> list[LoggedRecord]:
        topic = kafka.broker_topic(ANSWERS.name)
        return read_all(kafka_bootstrap, topic, until=at_least(len(published)))

    with (
        LlmServer() as llm,
        Stack(
            bootstrap=kafka_bootstrap,
            index_dir=small_index,
            work_dir=tmp_path / "run",
            settings=quick_settings()
            | clocks.variables
            | {"CARPOOL_KAFKA_PREFIX": kafka.prefix, "CARPOOL_LLM_MODEL": llm.model},
            llm_url=llm.url,
        ) as stack,
    ):
        ask("old")
        answers()
        stack.stop_services()
        clocks.set_ahead(shift_s)
        stack.start()
        pids = [stack[service].pid for service in SERVICES]
        ask("old")
        ask("wrong")
        ask("wrong-in-time", in_time())
        answers()
        is_early = shift_s > 0
        assert llm.requests.completed == EACH * (2 if is_early else 3), "no id was paid twice"
        clocks.set_ahead(0)
        ask("old")
        ask("right-in-time", in_time())
        found = answers()
        assert [stack[service].pid for service in SERVICES if stack[service].is_running] == pids
    for record in found:
        is_expired = is_early and record.body["query_id"].startswith("wrong-in-time")
        assert record.body["status"] == ("expired" if is_expired else "ok"), record.body
    assert Counter(record.body["query_id"] for record in found) == Counter(published)

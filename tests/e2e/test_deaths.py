"""A process that dies of a record: the record ends after four deaths, the others are answered."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.topics import GROUPS, QUERIES, RETRIEVALS
from tests.deploy.doc_blocks import ROOT
from tests.e2e.support import Publisher, committed_positions, read_to_end
from tests.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.slow


def test_a_record_that_kills_the_process_ends_and_the_others_are_answered(
    fresh_broker: str, tmp_path: Path
) -> None:
    publisher = Publisher(fresh_broker)
    texts = [f"good {number}" for number in range(10)]
    for number, text in enumerate([*texts[:5], "bad", *texts[5:]]):
        body = json.dumps({"query_id": text, "text": text}).encode()
        publisher.send(QUERIES.name, body, key=str(number % 2))
    log, ends = tmp_path / "log", []

    def begin() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.e2e.mortal_service", fresh_broker]
        with log.open("ab") as to:
            return subprocess.Popen(command, cwd=ROOT, stdout=to, stderr=to)

    process = begin()

    def has_ended() -> bool:
        nonlocal process
        if process.poll() is not None:
            ends.append(process.returncode)
            process = begin()
        ended = read_to_end(fresh_broker, RETRIEVALS.name) + read_to_end(fresh_broker, GROUPS.name)
        return len(ended) > len(texts)

    try:
        wait_until(has_ended, lambda: log.read_text()[-3_000:], every_s=0.5, timeout_s=3 * WAIT_S)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    assert ends == [9] * 4
    found = [each.value.decode() for each in read_to_end(fresh_broker, GROUPS.name)]
    assert sorted(found) == texts
    (answer,) = read_to_end(fresh_broker, RETRIEVALS.name)
    (letter,) = read_to_end(fresh_broker, "rag.queries.v1.dlq")
    assert (answer.body["query_id"], answer.body["status"]) == ("bad", "failed")
    assert "died twice" in answer.body["error"]["message"]
    assert letter.body["text"] == "bad"
    after = committed_positions(fresh_broker, "carpool-grouper", QUERIES.name, range(2))
    assert {metadata for _, metadata in after.values()} == {""}, "given up, without deaths"

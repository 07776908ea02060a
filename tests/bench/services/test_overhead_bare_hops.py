"""Bare hops: where they may run, what they copy, where they go on; and what is told of the machine
meanwhile.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from bench.services.overhead.bare_hops import copied, ends_of, parse, records_of
from bench.services.overhead.bare_rig import NAMES, TOPICS, hop_processes
from bench.services.overhead.disturbance import between, snapshot
from carpool.errors import ConfigError
from carpool.kafka.admin import partitions_of
from carpool.kafka.settings import KafkaSettings
from schemas.topics import ANSWERS, GROUPS, QUERIES, RETRIEVALS

ARGUMENTS = ("--from", "a", "--to", "b", "--group", "g", "--delivery", "exactly_once")


class Record:
    """As confluent-kafka gives one."""

    def __init__(self, partition: int, offset: int, error: KafkaError | None = None) -> None:
        self._place = partition, offset
        self._error = error

    def error(self) -> KafkaError | None:
        return self._error

    def topic(self) -> str:
        return "a"

    def partition(self) -> int:
        return self._place[0]

    def offset(self) -> int:
        return self._place[1]

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"v"

    def headers(self) -> list[tuple[str, bytes]]:
        return [("h", b"1")]


def records(*found: Any) -> list[Any]:
    return list(found)


def test_a_hop_copies_key_value_and_headers_and_continues_after_the_last_record() -> None:
    found = records(Record(0, 4), Record(1, 7), Record(0, 5))
    assert copied(found[0]) == {"key": b"k", "value": b"v", "headers": [("h", b"1")]}
    assert {(at.topic, at.partition, at.offset) for at in ends_of(found)} == {
        ("a", 0, 6),
        ("a", 1, 8),
    }


def test_a_hop_passes_over_the_ends_of_partitions_and_ends_with_a_fatal_error() -> None:
    record = Record(0, 4)
    end = Record(0, 5, KafkaError(KafkaError._PARTITION_EOF))
    assert records_of(records(None, record, end)) == [record]
    with pytest.raises(KafkaException):
        records_of(records(Record(0, 5, KafkaError(KafkaError._FENCED, "fenced", True))))


def test_a_hop_runs_on_this_machine_alone_with_the_settings_of_services(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CARPOOL_KAFKA_COMMIT_INTERVAL_MS", "35")
    settings, hop = parse(["--bootstrap", "127.0.0.1:1,localhost:2", *ARGUMENTS])
    assert (settings.delivery, settings.commit_interval_ms) == ("exactly_once", 35)
    assert (hop.source, hop.target, hop.group) == ("a", "b", "g")
    with pytest.raises(ConfigError, match="not on loopback"):
        parse(["--bootstrap", "127.0.0.1:1,10.0.0.1:9092", *ARGUMENTS])


def test_hops_form_a_chain_over_topics_that_are_made_as_those_of_the_services() -> None:
    kafka = KafkaSettings()
    theirs = (QUERIES, GROUPS, RETRIEVALS, ANSWERS)
    assert [partitions_of(topic, kafka) for topic in TOPICS] == [
        partitions_of(topic, kafka) for topic in theirs
    ]
    hops = hop_processes("at_least_once", bootstrap="127.0.0.1:1", folder=Path(), settings={})
    ways = [
        [hop.command[hop.command.index(option) + 1] for option in ("--from", "--to")]
        for hop in hops.values()
    ]
    assert ways == [[NAMES[0], NAMES[1]], [NAMES[1], NAMES[2]], [NAMES[2], NAMES[3]]]


def write_counters(proc: Path, cpu: str, threads: dict[str, str]) -> None:
    (proc / "stat").write_text(f"cpu  {cpu}\ncpu0 1 2 3\n")
    for thread, schedstat in threads.items():
        folder = proc / "7" / "task" / thread
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "schedstat").write_text(schedstat)


def test_the_stolen_share_is_of_all_ticks_and_waits_are_of_the_threads_that_are_there_at_the_end(
    tmp_path: Path,
) -> None:
    write_counters(tmp_path, "100 0 50 800 10 0 0 40 5 5", {"7": "9 1000000 10", "8": "9 5000 5"})
    before = snapshot([7, 99], tmp_path)
    write_counters(tmp_path, "150 0 60 820 10 0 0 60 9 9", {"7": "9 1600000 13", "9": "9 200000 1"})
    (tmp_path / "7" / "task" / "8" / "schedstat").unlink()
    load = between(before, snapshot([7, 99], tmp_path))
    assert load.stolen_share == pytest.approx(20 / 100)
    assert load.cpu_wait_us == pytest.approx(800 / 4)


def test_where_the_system_does_not_tell_nothing_is_said(tmp_path: Path) -> None:
    load = between(snapshot([7], tmp_path), snapshot([7], tmp_path))
    assert (load.stolen_share, load.cpu_wait_us) == (None, None)

"""`carpool dlq`: what could not be used is counted, shown, replayed once, and dropped as far as
Kafka can.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from rich.console import Console

from bench.core.embedded_broker import EmbeddedBroker
from carpool.dead_letters.letter import DeadLetter, Reason, make_letter, read_letter
from carpool.errors import ConfigError
from carpool.kafka.admin import create_topics
from carpool.kafka.librdkafka import LibrdkafkaProducer
from carpool.kafka.records import Message, Output
from carpool.kafka.settings import KafkaSettings
from cli.dlq import parse_time_ms, place_of_letter
from cli.letters import age, letter_json, letter_text, letters_table
from schemas.record import Headers, Source, header
from schemas.topics import DEAD_LETTER_MARKS, QUERIES, QUERIES_BATCH_DEAD, QUERIES_DEAD
from tests.cli.support import Ended, carpool
from tests.e2e.support import LoggedRecord, read_to_end
from tests.waiting import WAIT_S

PARTITIONS = 2
KAFKA = KafkaSettings()


def letter(
    value: bytes,
    reason: str = "not_json",
    headers: Headers = (),
    *,
    offset: int = 0,
    partition: int = 0,
) -> Output:
    source = Source(
        topic=QUERIES.name, partition=partition, offset=offset, timestamp_ms=1_700_000_000_000
    )
    why = Reason(
        group="carpool-grouper",
        stage="grouper",
        attempts=1,
        class_name=f"RecordError.{reason}",
        message=f"it is {reason}",
    )
    return make_letter(source=source, key=b"k", value=value, headers=headers, reason=why)


def as_read(output: Output) -> DeadLetter:
    place = Source(topic=output.topic, partition=0, offset=17, timestamp_ms=1_700_000_000_000)
    return read_letter(
        Message(
            source=place, key=output.key, value=output.value, headers=output.headers, received_us=0
        )
    )


def shown(output: Output) -> str:
    return letter_text(as_read(output)).plain


def test_a_place_needs_no_topic_where_there_is_but_one_that_can_be_meant() -> None:
    assert place_of_letter("2/17", KAFKA) == (QUERIES_DEAD.name, 2, 17)
    assert (
        place_of_letter("rag.queries.v1.dlq/2/17", KAFKA)
        == place_of_letter("rag.queries.v1/2/17", KAFKA)
        == place_of_letter("2/17", KAFKA)
    )
    for text in ("", "2", "2/x", "a/b/c/2/17", "-1/2", "2/17 "):
        with pytest.raises(ConfigError, match="PARTITION/OFFSET"):
            place_of_letter(text, KAFKA)


def test_moments_are_ages_or_times() -> None:
    now_us = 1_700_000_000_000_000
    assert parse_time_ms("90s", now_us) == 1_699_999_910_000
    assert parse_time_ms("2h", now_us) == now_us // 1_000 - 7_200_000
    assert (
        parse_time_ms("2023-11-14T22:13:20", now_us)
        == parse_time_ms("2023-11-14T22:13:20Z", now_us)
        == 1_700_000_000_000
    )
    assert parse_time_ms("2023-11-14T23:13:20+01:00", now_us) == 1_700_000_000_000
    for text in ("", "h", "2 h", "-2h", "yesterday", "2023-13-01"):
        with pytest.raises(ConfigError):
            parse_time_ms(text, now_us)


def test_ages_are_told_roughly() -> None:
    ages = [age(10**9 - s * 1_000, 10**9) for s in (0, 100, 150, 7_300, 200_000)]
    assert ages == ["0 s", "100 s", "2 min", "2 h", "2 d"]
    assert age(None, 5) == ""


def test_a_letter_is_shown_with_why_and_its_value_as_json_text_or_hex_if_long_cut() -> None:
    headers = (("traceparent", b"00-1"), ("x", None))
    text = shown(letter(b'{"query_id":"q-1","text":5}', "wrong_type", headers))
    assert "exception.message: it is wrong_type" in text
    assert "traceparent: 00-1" in text and "x: (null)" in text
    assert '  "query_id": "q-1",\n  "text": 5' in text
    assert "00000000  ff fe 41" in shown(letter(b"\xff\xfeA\x00"))
    assert "976 bytes more" in shown(letter(b"\xff" * 2_000))
    assert "1,808 characters more; --raw writes all of it" in shown(letter(b"x" * 10_000))


def test_secrets_in_headers_are_stars() -> None:
    secret = b"hunter2"
    names = ("Authorization", "x-api-key", "my_api_key", "X-Auth-Token", "db.password", "Cookie")
    output = letter(b"x", headers=tuple((name, secret) for name in names))
    assert shown(output).count("********") == len(names)
    assert "hunter2" not in shown(output) + json.dumps(letter_json(as_read(output)), default=str)


class Cluster:
    """A broker with letters in it, and the command against it."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        create_topics(KafkaSettings(bootstrap=bootstrap, partitions=PARTITIONS))

    def write(self, *outputs: Output) -> None:
        producer = LibrdkafkaProducer(KafkaSettings(bootstrap=self.bootstrap))
        reports = list[object]()
        for output in outputs:
            assert producer.produce(output, reports.append)
        assert producer.close(WAIT_S) == 0
        assert set(reports) == {None}

    def run(self, line: str) -> Ended:
        return carpool(f"dlq {line} --bootstrap {self.bootstrap}")

    def json(self, line: str, code: int = 0) -> Any:
        ended = self.run(f"{line} --json")
        assert ended.code == code, (ended.stdout, ended.stderr)
        return ended.json

    def places(self, line: str = "") -> set[str]:
        found = self.json(f"list --letters {line}")
        return {f"{each['place']['partition']}/{each['place'].get('offset', 0)}" for each in found}

    def records(self, topic: str) -> list[LoggedRecord]:
        return read_to_end(self.bootstrap, topic)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster with three letters in partition 0 and one in partition 1."""
    text = (("content-type", b"text/plain"),)
    with EmbeddedBroker() as broker:
        found = Cluster(broker.bootstrap)
        found.write(
            letter(b"{", offset=5),
            letter(b"What was that?", "wrong_model", (*text, ("rag-deadline-ms", b"1")), offset=6),
            letter(b"{}", "missing_field", offset=7),
            letter(b"Who?", "wrong_model", (("ce_id", b"q-9"), *text), partition=1),
        )
        yield found


def test_letters_are_listed_replayed_once_and_dropped(cluster: Cluster) -> None:
    counts = {each["topic"]: each for each in cluster.json("list")}
    counted = counts[QUERIES_DEAD.name]
    assert (counted["letters"], counted["open"]) == (4, 4)
    assert {each["reason"]: each["letters"] for each in counted["reasons"]} == {
        "not_json": 1,
        "wrong_model": 2,
        "missing_field": 1,
    }
    assert cluster.places() == {"0/0", "0/1", "0/2", "1/0"}
    assert cluster.places("--reason wrong_model") == {"0/1", "1/0"}
    assert cluster.places(f"--topic {QUERIES.name} --reason not_json") == {"0/0"}
    assert cluster.places("--since 1h") == {"0/0", "0/1", "0/2", "1/0"}
    assert cluster.places("--until 1h") == set()
    assert "wrong_model" in cluster.run("list").stdout
    assert "0/1" in cluster.run("list --letters").stdout
    assert cluster.json("show 0/1")["text"] == "What was that?"
    assert cluster.run("show 0/1 --raw").stdout == "What was that?"

    assert len(cluster.json("replay --reason wrong_model --dry-run")) == 2
    assert cluster.records(QUERIES.name) == []
    assert cluster.json("replay --reason wrong_model") == {"replayed": 2, "cut": 0}
    replayed = {record.value: record for record in cluster.records(QUERIES.name)}
    assert set(replayed) == {b"What was that?", b"Who?"}
    assert header(replayed[b"Who?"].headers, "ce_id") == b"q-9"
    assert header(replayed[b"Who?"].headers, "rag-replayed-from") == b"rag.queries.v1.dlq/1/0"
    assert not any(
        name.startswith("rag.errors.") for record in replayed.values() for name, _ in record.headers
    )
    assert header(replayed[b"What was that?"].headers, "rag-deadline-ms") == b"1", (
        "its first deadline holds"
    )

    assert cluster.json("replay --reason wrong_model", code=1) == {"replayed": 0, "cut": 0}
    assert len(cluster.records(QUERIES.name)) == 2
    assert cluster.places() == {"0/0", "0/2"}
    assert cluster.places("--marked") == {"0/0", "0/1", "0/2", "1/0"}

    assert cluster.json("replay 0/1 --again --deadline-s 60") == {"replayed": 1, "cut": 0}
    deadlines = [
        int(header(record.headers, "rag-deadline-ms") or b"0")
        for record in cluster.records(QUERIES.name)
    ]
    assert max(deadlines) > time.time() * 1_000

    assert cluster.json("drop 0/0") == {"dropped": 1}
    counted = {each["topic"]: each for each in cluster.json("list")}[QUERIES_DEAD.name]
    numbers = [counted[name] for name in ("letters", "open", "replayed", "dropped")]
    assert numbers == [4, 1, 2, 1]
    assert "dropped" in cluster.run("show 0/0").stdout
    assert len(cluster.records(DEAD_LETTER_MARKS.name)) == 4

    for command in ("replay", "drop"):
        unnamed = cluster.run(command)
        assert (unnamed.code, "--all" in unnamed.stderr) == (2, True)
    assert cluster.json("replay --all --limit 1") == {"replayed": 1, "cut": 0}
    cluster.write(letter(bytes(3_000_000), "too_large"))
    assert cluster.json("replay --reason too_large", code=1) == {"replayed": 0, "cut": 1}
    assert cluster.json("drop --reason too_large") == {"dropped": 1}
    for place in ("0/99", "9/0", "nothing.dlq/0/0"):
        missing = cluster.run(f"show {place}")
        assert (missing.code != 0, "there is no" in missing.stderr) == (True, True)


def test_the_tables_are_wide_enough_for_a_place() -> None:
    far = as_read(letter(b"x" * 5))
    place = msgspec.structs.replace(far.place, topic=QUERIES_BATCH_DEAD.name, offset=1_234_567_890)
    console = Console(width=80, color_system=None)
    with console.capture() as capture:
        console.print(letters_table([replace(far, place=place)], 1_700_000_100_000))
    assert "rag.queries.batch.v1.dlq/0/1234567890" in capture.get()

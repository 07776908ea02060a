"""Running services answer mutated queries or write dead letters, and bad ones end with their
reason; none stops. `make nightly` mutates other ones.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from carpool.disk.manifest import read_manifest
from carpool.kafka.admin import create_topics
from carpool.kafka.settings import KafkaSettings
from schemas.codec import decode_query
from schemas.errors import REASONS, RecordError
from schemas.headers import ignored_retry_headers
from schemas.record import Source
from schemas.topics import ANSWERS, QUERIES, QUERIES_DEAD
from tests.e2e.support import (
    LoggedRecord,
    Publisher,
    committed_positions,
    read_all,
    read_to_end,
    services,
)
from tests.kafka.fuzzing import Mutator, Raw, real_records
from tests.kafka.raw_producer import write_with_header_name
from tests.rig.poison import poison_for, poison_records
from tests.seed import SEED
from tests.waiting import WAIT_S

RECORDS = 500
EVERY = 20
"""One good query for so many mutated ones, in every partition."""
HEADER_NAMES = (b"\xff\xfe", b"caf\xe9", b"", b"a\x00b") * 15
"""Python specialises what runs often."""

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def fuzzed(count: int) -> list[Raw]:
    mutator, real = Mutator(seed=SEED), real_records()[QUERIES.name]
    return [mutator.mutated(with_id(real[at % len(real)], b"q-%d" % at)) for at in range(count)]


def with_id(raw: Raw, query_id: bytes) -> Raw:
    """A record with an id of its own: questions of the same id are answered one after the other."""
    headers = tuple((name, it and it.replace(b"q-1", query_id)) for name, it in raw.headers)
    return Raw((raw.value or b"").replace(b"q-1", query_id), headers)


def is_refused(record: LoggedRecord) -> bool:
    """Whether the decoder refuses what was published."""
    source = Source(topic=QUERIES.name, partition=record.partition, offset=record.offset)
    try:
        decode_query(record.value, ignored_retry_headers(record.headers), source)
    except RecordError:
        return True
    return False


def place(letter: LoggedRecord) -> tuple[int, int]:
    partition, offset = (letter.text(f"rag.errors.{name}") for name in ("partition", "offset"))
    return int(partition or -1), int(offset or -1)


def reason(letter: LoggedRecord) -> tuple[str, str]:
    """Who refused the record, and why."""
    name = letter.text("rag.errors.exception.class.name") or ""
    class_name, _, word = name.rpartition(".")
    return class_name, word


def answered_places(answers: list[LoggedRecord]) -> set[tuple[int, int]]:
    sources = (each.body["source"] for each in answers)
    return {(source["partition"], source["offset"]) for source in sources if source}


def test_every_bad_query_ends_and_good_queries_between_them_are_answered(
    kafka_bootstrap: str, small_index: Path, tmp_path: Path
) -> None:
    manifest = read_manifest(small_index)
    poison = (*poison_records(), *poison_for(manifest.embedding_model, manifest.dimension))
    kafka = KafkaSettings(bootstrap=kafka_bootstrap, prefix="bad-input")
    create_topics(kafka)
    queries, answers_topic, dead = map(
        kafka.broker_topic, (QUERIES.name, ANSWERS.name, QUERIES_DEAD.name)
    )
    publisher, good = Publisher(kafka_bootstrap), []
    bad = [Raw(each.value, each.headers) for each in poison] + fuzzed(RECORDS)
    for number, raw in enumerate(bad):
        publisher.queue(queries, raw.value, key=str(number), headers=raw.headers)
        if number % EVERY == 0:
            good.append(f"good-{number}")
            text = "what of the river and comet?"
            body = json.dumps({"query_id": good[-1], "text": text}).encode()
            publisher.queue(queries, body, key=str(number))
    for name in HEADER_NAMES:
        write_with_header_name(kafka_bootstrap, queries, b"what of the violin?", name)
    publisher.flush()
    published = {
        (each.partition, each.offset): each for each in read_to_end(kafka_bootstrap, queries)
    }
    assert len(published) == len(bad) + len(good) + len(HEADER_NAMES)
    refused = {at for at, record in published.items() if is_refused(record)}
    assert len(refused) > RECORDS // 4

    with services(
        kafka_bootstrap, small_index, tmp_path / "run", KAFKA_PREFIX=kafka.prefix
    ) as stack:
        read_all(kafka_bootstrap, dead, until=lambda found: refused <= set(map(place, found)))
        answers = read_all(
            kafka_bootstrap,
            answers_topic,
            until=lambda found: published.keys() <= answered_places(found),
            timeout_s=2 * WAIT_S,
        )
        letters = read_to_end(kafka_bootstrap, dead)
        assert all(process.is_running for process in stack.processes.values())

    by_place = Counter(map(place, letters))
    assert published.keys() == answered_places(answers), "every record has an answer"
    assert set(by_place.values()) == {1}, "each letter once"
    statuses = {each.body["query_id"]: each.body["status"] for each in answers}
    assert {query_id: statuses.get(query_id) for query_id in good} == dict.fromkeys(good, "ok")
    for letter in letters:
        original = published[place(letter)]
        class_name, word = reason(letter)
        if class_name == "QueryFailure":  # the generator refused it after it was decoded
            continue
        assert letter.value == original.value
        own = ignored_retry_headers(original.headers)
        assert letter.headers[: len(own)] == own
        assert word in REASONS
    known = {(letter.value, reason(letter)[1]) for letter in letters}
    for each in poison:
        assert (each.value or b"", each.reason) in known
        if each.query_id is not None:
            assert statuses[each.query_id] == "failed"
    ends = {
        partition: max(at for number, at in published if number == partition) + 1
        for partition, _ in published
    }
    committed = committed_positions(kafka_bootstrap, kafka.group_of("grouper"), queries, ends)
    assert {partition: committed[partition][0] >= end for partition, end in ends.items()} == (
        dict.fromkeys(ends, True)
    )

"""Running services answer 2,000 mutated queries or write dead letters; none stops."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from bench.core.stack import Stack
from carpool.kafka.admin import create_topics
from carpool.kafka.settings import KafkaSettings
from carpool.testing.kafka import KafkaServer
from schemas.codec import decode_query
from schemas.errors import REASONS, RecordError
from schemas.headers import ignored_retry_headers
from schemas.record import Source
from schemas.topics import ANSWERS, QUERIES, QUERIES_DEAD
from tests.e2e.support import (
    LoggedRecord,
    Publisher,
    build_index,
    committed_positions,
    quick_settings,
    read_all,
    read_to_end,
)
from tests.kafka.fuzzing import Mutator, Raw, real_records
from tests.kafka.raw_producer import write_with_header_name
from tests.waiting import WAIT_S

RECORDS = 2_000
EVERY = 20
"""One good query for so many mutated ones, in every partition."""

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def fuzzed(count: int) -> list[Raw]:
    mutator, real = Mutator(seed=3), real_records()[QUERIES.name]
    return [mutator.mutated(real[number % len(real)]) for number in range(count)]


def is_refused(record: LoggedRecord) -> bool:
    """Whether the decoder refuses what was published."""
    source = Source(topic=QUERIES.name, partition=record.partition, offset=record.offset)
    try:
        decode_query(record.value, ignored_retry_headers(record.headers), source)
    except RecordError:
        return True
    return False


def place(record: LoggedRecord) -> tuple[int, int]:
    return int(record.text("rag.errors.partition") or -1), int(
        record.text("rag.errors.offset") or -1
    )


def test_every_mutated_query_ends_and_good_queries_between_them_are_answered(
    tmp_path: Path,
) -> None:
    index = build_index(tmp_path)
    with KafkaServer(tmp_path / "kafka") as broker:
        create_topics(KafkaSettings(bootstrap=broker.bootstrap))
        publisher, good = Publisher(broker.bootstrap), []
        for number, raw in enumerate(fuzzed(RECORDS)):
            publisher.queue(QUERIES.name, raw.value, key=str(number), headers=raw.headers)
            if number % EVERY == 0:
                good.append(f"good-{number}")
                text = "what of the river and comet?"
                body = json.dumps({"query_id": good[-1], "text": text}).encode()
                publisher.queue(QUERIES.name, body, key=str(number))
        for name in (b"\xff\xfe", b"caf\xe9", b"", b"a\x00b"):
            write_with_header_name(broker.bootstrap, QUERIES.name, b"what of the violin?", name)
        publisher.flush()
        published = {
            (each.partition, each.offset): each
            for each in read_to_end(broker.bootstrap, QUERIES.name)
        }
        assert len(published) == RECORDS + len(good) + 4

        settings = quick_settings()
        with Stack(
            bootstrap=broker.bootstrap,
            index_dir=index,
            work_dir=tmp_path / "run",
            settings=settings,
        ) as stack:

            def answered(found: list[LoggedRecord]) -> set[tuple[int, int]]:
                sources = (each.body["source"] for each in found)
                return {(source["partition"], source["offset"]) for source in sources if source}

            def ended(found: list[LoggedRecord]) -> bool:
                letters = {
                    place(letter) for letter in read_to_end(broker.bootstrap, QUERIES_DEAD.name)
                }
                return set(published) <= answered(found) | letters

            answers = read_all(broker.bootstrap, ANSWERS.name, until=ended, timeout_s=2 * WAIT_S)
            letters = read_to_end(broker.bootstrap, QUERIES_DEAD.name)
            assert not [
                name for name, process in stack.processes.items() if not process.is_running
            ], "nothing crashed"

        by_place = Counter(place(letter) for letter in letters)
        assert set(published) == answered(answers) | set(by_place), "every record ended"
        assert set(by_place.values()) == {1}, "each letter once"
        statuses = {each.body["query_id"]: each.body["status"] for each in answers}
        assert {query_id: statuses.get(query_id) for query_id in good} == dict.fromkeys(good, "ok")
        refused = {at for at, record in published.items() if is_refused(record)}
        assert refused <= set(by_place), "what the decoder refuses has a letter"
        assert len(refused) > RECORDS // 4
        for letter in letters:
            original = published[place(letter)]
            class_name, _, reason = (
                letter.text("rag.errors.exception.class.name") or ""
            ).rpartition(".")
            if class_name == "QueryFailure":  # the generator refused it after it was decoded
                continue
            assert letter.value == original.value
            own = ignored_retry_headers(original.headers)
            assert letter.headers[: len(own)] == own
            assert reason in REASONS
        ends = {
            partition: max(at for number, at in published if number == partition) + 1
            for partition, _ in published
        }
        committed = committed_positions(broker.bootstrap, "carpool-grouper", QUERIES.name, ends)
        assert {
            partition: committed[partition][0] >= end for partition, end in ends.items()
        } == dict.fromkeys(ends, True)

"""Asks with bare texts through a plain Kafka client, and matches answers by `source`.

The key of each record is the customer who asks. A key is no id: the place of the record is.

    python examples/bare_text.py client.properties customer-7 "Who wrote Moby-Dick?" "Who was Ovid?"

`client.properties` has librdkafka's settings, `bootstrap.servers=127.0.0.1:9092` and those of the
brokers' security, such as `security.protocol=SASL_SSL`, one a line.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

QUERIES, ANSWERS = "rag.queries.v1", "rag.answers.v1"
TIMEOUT_S = 120.0
Place = tuple[str, int, int]


def settings_of(file: str) -> dict[str, str]:
    """Returns the settings in a file of `name=value` lines."""
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def reader_at_the_end(settings: dict[str, str]) -> Consumer:
    """Returns a reader of the answers from now on, in no consumer group."""
    reader = Consumer(
        {
            **settings,
            "group.id": "bare-text",  # required by the library, never joined
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    numbers = reader.list_topics(ANSWERS, timeout=10).topics[ANSWERS].partitions
    places = [TopicPartition(ANSWERS, number) for number in numbers]
    for place in places:
        place.offset = reader.get_watermark_offsets(place, timeout=10)[1]
    reader.assign(places)
    return reader


def ask(settings: dict[str, str], customer: str, texts: list[str]) -> None:
    """Prints one line for each text: the customer, the text and its answer."""
    reader = reader_at_the_end(settings)  # before the first question is written
    asked: dict[Place, str] = {}
    producer = Producer({**settings, "partitioner": "murmur2_random"})
    for text in texts:

        def delivered(error: KafkaError | None, record: Message, text: str = text) -> None:
            if error is not None:
                raise SystemExit(f"{text!r} was not written: {error.str()}")
            asked[record.topic() or "", record.partition() or 0, record.offset() or 0] = text

        producer.produce(QUERIES, text.encode(), key=customer, on_delivery=delivered)
    producer.flush(30)

    until_s = time.monotonic() + TIMEOUT_S
    while asked and time.monotonic() < until_s:
        record = reader.poll(1.0)
        if record is None or record.error() is not None:
            continue
        answer = json.loads(record.value() or b"{}")
        source = answer["source"]
        text = asked.pop((source["topic"], source["partition"], source["offset"]), None)
        if text is not None:
            headers = dict(record.headers() or [])
            key = (headers["rag-key"] or b"").decode()
            sys.stdout.write(f"{key}: {text} {answer['status']}: {answer.get('answer')}\n")
    reader.close()
    if asked:
        raise SystemExit(f"no answer within {TIMEOUT_S:g} s to: {', '.join(asked.values())}")


if __name__ == "__main__":
    ask(settings_of(sys.argv[1]), sys.argv[2], sys.argv[3:])

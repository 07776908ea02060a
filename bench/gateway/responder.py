"""A stand-in for the services: answers each question at once, with a text of its own, in pieces.

A question that begins with `HOLD` gets its first piece at once, and the answer after `HOLD_S`.
"""

from __future__ import annotations

import heapq
import os
import signal
import threading
import time
from itertools import count

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Producer

from bench.core.kafka import kafka_settings
from carpool.clock import SystemClock
from carpool.kafka.client_config import producer_config
from carpool.kafka.topic_reader import TopicReader
from schemas.answer import Answer, PartialAnswer
from schemas.codec import decode_query, encode
from schemas.topics import ANSWERS, PARTIAL_ANSWERS, QUERIES

PIECES = 8
HOLD, HOLD_S, POLL_S = "hold", 20.0, 0.02
NONE = {"citations": (), "retrieved": ()}
ANSWERED = {"status": "ok", "is_final": True, "replayed": False, "attempts": 1, **NONE}


def pieces(text: str) -> list[str]:
    """Returns the pieces of the answer to a question, which no other question has."""
    return [f"Piece {number} of 8 of the answer to {text!r}. " for number in range(PIECES)] + ["."]


def main() -> None:
    """Answers until SIGTERM."""
    ending, numbers, kafka = threading.Event(), count(), kafka_settings(os.environ)
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    producer = Producer(producer_config(kafka) | {"linger.ms": 0})
    reader = TopicReader(kafka, SystemClock(), name="responder")
    reader.add(dict.fromkeys(reader.partitions(QUERIES.name, patience_s=30), OFFSET_BEGINNING))
    waiting = list[tuple[float, int, Answer | PartialAnswer]]()
    while not ending.is_set():
        for message in reader.poll(1, POLL_S).messages:
            query = decode_query(message.value or b"", message.headers, message.source)
            found, id = pieces(query.text or ""), query.query_id
            records: list[Answer | PartialAnswer] = [
                PartialAnswer(query_id=id, generation_id="only", seq=seq, text=piece)
                for seq, piece in enumerate(found)
            ]
            own = {"query_id": id, "answer": "".join(found), "source": message.source}
            records.append(msgspec.convert({**ANSWERED, **own}, Answer))
            hold_s = HOLD_S if (query.text or "").startswith(HOLD) else 0.0
            for at, record in enumerate(records):
                due_s = time.monotonic() + hold_s * at / len(found)
                heapq.heappush(waiting, (due_s, next(numbers), record))
        while waiting and waiting[0][0] <= time.monotonic():
            _, number, record = heapq.heappop(waiting)
            topic = ANSWERS if isinstance(record, Answer) else PARTIAL_ANSWERS
            now_us = SystemClock().now_us()
            value, headers = encode(record, event_id=f"{number}", source="bench", time_us=now_us)
            producer.produce(topic.name, key=record.query_id, value=value, headers=list(headers))
        producer.poll(0)
    producer.flush(10.0)


if __name__ == "__main__":
    main()

"""A steady load of retrievals, to one partition after another, for a generator by itself."""

from __future__ import annotations

import threading
import time

import confluent_kafka

from carpool.errors import CarpoolError
from schemas.codec import encode
from schemas.query import Query
from schemas.record import ClusterId, Source
from schemas.retrieval import Hit, Retrieval
from schemas.topics import QUERIES, RETRIEVALS

FLUSH_S = 30.0
HIT = Hit(doc_id="d-1", score=0.9, cluster=ClusterId(1), title="A title", text="A passage.")


class RetrievalLoad(threading.Thread):
    """Publishes from `start` to `stop`. The id of a query is PARTITION-NUMBER."""

    def __init__(self, bootstrap: str, *, partitions: int, rate_per_s: float) -> None:
        super().__init__(name="load", daemon=True)
        self._producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 1})
        self._partitions = partitions
        self._rate_per_s = rate_per_s
        self._stopping = threading.Event()
        self.ids: list[str] = []
        self.behind_ms_max = 0.0
        """The longest delay of a record."""

    def run(self) -> None:
        """Publishes each record when it is due."""
        began_s = time.monotonic()
        while not self._stopping.is_set():
            number = len(self.ids)
            due_s = began_s + number / self._rate_per_s
            time.sleep(max(0.0, due_s - time.monotonic()))
            self.behind_ms_max = max(self.behind_ms_max, (time.monotonic() - due_s) * 1_000)
            self._publish(number % self._partitions, number)
            self._producer.poll(0)

    def _publish(self, partition: int, number: int) -> None:
        query_id = f"{partition}-{number}"
        retrieval = Retrieval(
            query=Query(query_id=query_id, text=f"What of {number}?"),
            source=Source(topic=QUERIES.name, partition=partition, offset=number),
            revision=1,
            is_final=True,
            index_version="i",
            embedding_model="m",
            hits=(HIT,),
            skipped_clusters=(),
        )
        value, headers = encode(retrieval, event_id=query_id, source="bench", time_us=0)
        self._producer.produce(
            RETRIEVALS.name, value, query_id, partition=partition, headers=list(headers)
        )
        self.ids.append(query_id)

    def stop(self) -> None:
        """Ends the load when all of it was written. Raises `CarpoolError` where it was not."""
        self._stopping.set()
        self.join()
        if left := self._producer.flush(FLUSH_S):
            raise CarpoolError(f"{left} records of the load were not written within {FLUSH_S:g} s")

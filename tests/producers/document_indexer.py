"""A stand-in for the indexer: one passage for each line of a document, with vectors of zero."""

from __future__ import annotations

import threading

from confluent_kafka import Producer

from carpool.clock import SystemClock
from carpool.kafka.admin import create_topics
from carpool.kafka.client_config import producer_config
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import TopicReader
from producers.corpus.log import topic_id
from schemas.codec import encode
from schemas.document import Document, DocumentVectors, IndexedPassage
from schemas.document_codec import decode_document
from schemas.topics import DOCUMENTS, VECTORS
from tests.waiting import WAIT_S

REFUSED = "what no indexer takes"


class DocumentIndexer:
    """Indexes the documents of a broker on its own thread, from its start on."""

    def __init__(self, bootstrap: str) -> None:
        kafka = KafkaSettings(bootstrap=bootstrap)
        create_topics(kafka)
        self.ahead_most = 0
        """The most records that were written and not answered."""
        self.pause_s = 0.0
        """After each batch."""
        self._topic = topic_id(kafka)
        self._producer = Producer(producer_config(kafka))
        config = {"fetch.wait.max.ms": 10}
        self._reader = TopicReader(kafka, SystemClock(), name="document-indexer", config=config)
        self._ends = {
            at: self._reader.bounds(at, patience_s=WAIT_S)[1]
            for at in self._reader.partitions(DOCUMENTS.name, patience_s=WAIT_S)
        }
        self._reader.add(self._ends)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._reader.close()
        self._producer.flush(WAIT_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            batch = self._reader.poll(10_000, 0.05)
            self.ahead_most = max(self.ahead_most, len(batch.messages))
            for message in batch.messages:
                _, document = decode_document(message.key, message.value, message.headers)
                made = self._made(document, message.source.offset)
                value, headers = encode(made, event_id="e", source="test", time_us=1)
                self._producer.produce(
                    VECTORS.name,
                    key=message.key,
                    value=value,
                    headers=list(headers),
                    partition=message.source.partition,
                )
                self._producer.poll(0)
            self._stopping.wait(self.pause_s)

    def _made(self, document: Document | None, offset: int) -> DocumentVectors:
        if document is None:
            return DocumentVectors(offset=offset, topic=self._topic, deleted=True)
        texts = [passage.text for passage in document.passages] or (document.text or "").split("\n")
        if REFUSED in texts:
            return DocumentVectors(offset=offset, topic=self._topic, refused=f"unfit: {REFUSED}")
        passages = tuple(IndexedPassage(text=text) for text in texts if text)
        return DocumentVectors(
            offset=offset,
            topic=self._topic,
            embedding_model="m",
            title=document.title,
            metadata=document.metadata,
            passages=passages,
            vectors=bytes(4 * len(passages)),
        )

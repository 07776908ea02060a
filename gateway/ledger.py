"""Files and batches as the log has them: keeps the newest record of each, and writes new ones."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import structlog
from msgspec.structs import replace

from carpool.clock import Clock
from carpool.errors import RetryableError
from carpool.kafka.records import Message
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import TopicReader
from producers.batch.batch_log import SOURCE_NAME, batch_of, batch_record
from producers.batch.run import READ_AT_ONCE, READING
from producers.build_query import QueryRecord, packed
from producers.errors import PublishError
from producers.match_answers import Place
from producers.publish_queries import Publisher
from producers.settings import ClientSettings
from schemas.batch import Batch
from schemas.codec import decode
from schemas.errors import RecordError
from schemas.files import StoredFile
from schemas.topics import BATCHES, FILES

log = structlog.get_logger()

POLL_S = 0.2
RETRY_S = 1.0


class Ledger:
    """Files by id, and batches by id, those of `/v1/batches` alone. Writes are of one event loop.

    `changed_s`: when this process saw the last record of a batch, in monotonic seconds. `undone`:
    batches that have ended although their last record does not say so: their end is to be written
    again. A thread follows the topics.
    """

    def __init__(self, kafka: KafkaSettings, client: ClientSettings, clock: Clock) -> None:
        self.files: dict[str, StoredFile] = {}
        self.batches: dict[str, Batch] = {}
        self.changed_s: dict[str, float] = {}
        self.undone = set[str]()
        self._kafka = kafka
        self._client = client
        self._clock = clock
        self._publisher: Publisher | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="carpool-ledger", daemon=True)

    def open(self) -> None:
        """Reads all that there is, and begins to follow. Blocks.

        Raises `ConfigError` where a topic is missing, `RetryableError` without brokers.
        """
        self._reader = TopicReader(self._kafka, self._clock, name="gateway", config=READING)
        left = {at for topic in (FILES, BATCHES) for at in self._reader.partitions(topic.name)}
        self._reader.add({at: self._reader.bounds(at)[0] for at in left})
        until_s = time.monotonic() + self._kafka.request_timeout_ms / 1_000
        while left:
            if self._read(left):
                until_s = time.monotonic() + self._kafka.request_timeout_ms / 1_000
            elif time.monotonic() > until_s:
                raise RetryableError("the brokers send no files and batches; are they running?")
        self._publisher = Publisher(self._kafka, self._client)
        self._thread.start()

    def close(self) -> None:
        """Disconnects. Blocks."""
        self._stopping.set()
        if self._publisher is not None:
            self._thread.join()
            self._publisher.close(self._client.publish_timeout_ms / 1_000)
        self._reader.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._read(set())
            except Exception as error:
                log.warning("files and batches cannot be read; trying again", error=str(error))
                self._stopping.wait(RETRY_S)

    def _read(self, left: set[Any]) -> bool:
        """Takes what has come; returns whether anything has. Partitions at their end leave."""
        batch = self._reader.poll(READ_AT_ONCE, POLL_S)
        for message in batch.messages:
            self._take(message)
        left -= batch.ends.keys() | batch.passed_over.keys()
        return bool(batch.messages or batch.ends)

    def _take(self, message: Message) -> None:
        if message.source.topic == BATCHES.name:
            batch = batch_of(message)
            if batch is not None and batch.request is not None:
                self._see(batch)
        elif message.value is None:
            self.files.pop((message.key or b"").decode(errors="replace"), None)
        else:
            try:
                file = decode(StoredFile, message.value, message.headers)
            except RecordError:
                return
            self.files[file.file_id] = file

    def _see(self, batch: Batch) -> None:
        known, request = self.batches.get(batch.batch_id), batch.request
        assert request is not None
        if known is not None and known.request is not None:
            # What its runner wrote before it knew takes neither an end nor a cancel back.
            if known.request.ended and not request.ended:
                self.undone.add(batch.batch_id)
                return
            if known.request.is_cancelled:
                batch = replace(batch, request=replace(request, is_cancelled=True))
        self.changed_s[batch.batch_id] = time.monotonic()
        self.batches[batch.batch_id] = batch

    async def write_file(self, file: StoredFile) -> None:
        """Writes what is known of a file. Raises `PublishError`."""
        now_us = self._clock.now_us()
        await self.publish(packed(FILES, file.file_id, file, file.upload, now_us, SOURCE_NAME))
        self.files[file.file_id] = file

    async def delete_file(self, file_id: str) -> None:
        """Deletes what is known of a file. Raises `PublishError`."""
        await self.publish(QueryRecord(topic=FILES.name, query_id=file_id, value=None, headers=()))
        self.files.pop(file_id, None)

    async def write_batch(self, batch: Batch) -> None:
        """Writes what is known of a batch. Raises `PublishError`."""
        await self.publish(batch_record(batch, self._clock.now_us()))
        self._see(batch)

    async def publish(self, record: QueryRecord) -> Place | None:
        """Returns where a record is, once the brokers have it. Raises `PublishError`."""
        loop = asyncio.get_running_loop()
        placed = loop.create_future()

        def settle(place: Place | None, error: PublishError | None) -> None:
            if placed.cancelled():
                return
            if error is None:
                placed.set_result(place)
            else:
                placed.set_exception(error)

        def on_placed(place: Place | None, error: PublishError | None) -> None:
            loop.call_soon_threadsafe(settle, place, error)

        assert self._publisher is not None
        self._publisher.send(record, on_placed)
        found: Place | None = await placed
        return found

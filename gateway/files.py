"""Files of those who ask: their content goes to the log in pieces, and is read from there."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator, Generator, Sequence

from msgspec.structs import replace

from carpool.clock import Clock
from carpool.errors import CarpoolError
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import TopicReader
from gateway.ledger import Ledger
from producers.batch.batch_log import SOURCE_NAME
from producers.build_query import packed
from producers.match_answers import Place
from schemas.codec import decode
from schemas.files import FilePiece, Purpose, StoredFile
from schemas.topics import FILE_PIECES, FILES

PIECE_BYTES = 256 * 1024
READING = {"queued.max.messages.kbytes": 8_192}
UNPLACED_MAX = 8
"""Pieces of a file that are sent and not acknowledged."""


class LostFile(CarpoolError):
    """The pieces of a file are not all there: the brokers have deleted them."""


class Files:
    """For one event loop, but for `read`, which any thread may call."""

    def __init__(self, kafka: KafkaSettings, ledger: Ledger, clock: Clock) -> None:
        self._kafka = kafka
        self._ledger = ledger
        self._clock = clock

    def of(self, owner: str) -> list[StoredFile]:
        """Returns the files of an owner that have not expired, the newest first."""
        since_ms = self._clock.now_us() // 1_000 - FILES.retention_ms
        files = [*self._ledger.files.values()]
        for each in files:
            if each.created_ms <= since_ms:
                self._ledger.files.pop(each.file_id, None)
        found = [each for each in files if each.owner == owner and each.created_ms > since_ms]
        return sorted(found, key=lambda each: each.created_ms, reverse=True)

    async def store(
        self,
        chunks: AsyncIterator[bytes],
        *,
        owner: str,
        name: str,
        purpose: Purpose,
        file_id: str | None = None,
    ) -> StoredFile:
        """Writes a file in pieces, then what is known of it; returns that. Raises `PublishError`.

        `chunks`: of at most `PIECE_BYTES`.
        """
        upload, digest, size = uuid.uuid4().hex, hashlib.sha256(), 0
        sent, places = set[asyncio.Task[Place | None]](), list[Place | None]()
        try:
            async for chunk in chunks:
                digest.update(chunk)
                size += len(chunk)
                piece = FilePiece(upload=upload, data=chunk)
                now_us, event_id = self._clock.now_us(), f"{upload}/{size}"
                record = packed(FILE_PIECES, upload, piece, event_id, now_us, SOURCE_NAME)
                sent.add(asyncio.create_task(self._ledger.publish(record)))
                await asyncio.sleep(0)  # so they are sent in their order
                while len(sent) >= UNPLACED_MAX:
                    done, sent = await asyncio.wait(sent, return_when=asyncio.FIRST_COMPLETED)
                    places += [task.result() for task in done]
            places += await asyncio.gather(*sent)
        finally:
            for task in sent:
                task.cancel()
        file = StoredFile(
            file_id=file_id or f"file-{uuid.uuid4().hex}",
            owner=owner,
            name=name,
            purpose=purpose,
            size_bytes=size,
            sha256=digest.hexdigest(),
            upload=upload,
            created_ms=self._clock.now_us() // 1_000,
        )
        await self._ledger.write_file(_placed(file, places))
        return self._ledger.files[file.file_id]

    async def delete(self, file: StoredFile) -> None:
        """Deletes a file; its pieces stay in the log as long as others. Raises `PublishError`."""
        await self._ledger.delete_file(file.file_id)

    def read(self, file: StoredFile) -> Generator[bytes]:
        """Yields the content. Blocks. Raises `LostFile`, `RetryableError`."""
        left = file.size_bytes
        at, key = TopicPartition(FILE_PIECES.name, file.partition), file.upload.encode()
        with TopicReader(self._kafka, self._clock, name="gateway", config=READING) as reader:
            if left and reader.bounds(at)[0] > file.start:
                raise LostFile(f"{file.name}: its first bytes are not in the log any more")
            for message in reader.read_range(at, file.start, file.end):
                if message.key == key:
                    piece = decode(FilePiece, message.value, message.headers)
                    left -= len(piece.data)
                    yield piece.data
        if left:
            raise LostFile(f"{file.name}: {left:,} bytes of it are not in the log any more")


def _placed(file: StoredFile, places: Sequence[Place | None]) -> StoredFile:
    """Returns a file with the place of its pieces."""
    known = [place for place in places if place is not None]
    if len(known) < len(places):
        raise CarpoolError("the brokers do not say where the pieces of the file are")
    if not known:
        return file
    offsets = [offset for _, offset in known]
    return replace(file, partition=known[0][0], start=min(offsets), end=max(offsets) + 1)

"""What the indexer reads, and how a document ends that it cannot use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from carpool.kafka.partitioner import partition_of
from carpool.kafka.records import Message
from carpool.loop.ends import Ends
from carpool.loop.priority.intake_queues import Intake
from carpool.loop.stage import Done, Unit
from indexer.vector_records import VectorRecords
from schemas.document import Document, DocumentVectors
from schemas.document_codec import decode_document
from schemas.errors import RecordError
from schemas.topics import DOCUMENTS

REASON_CHARS_MAX = 2_000
MISPLACED = b"\0"
"""Before the key of a document in another partition than its key's: no document has such a key.

So the position moves on, and the document of this key stays, which is in its own partition.
"""


class MisplacedError(RecordError):
    """A document is in a partition that is not its key's."""


class ReadDocument(NamedTuple):
    """A record of `rag.documents.v1`. `document` None: it is deleted. `error`: it is refused."""

    document: Document | None = None
    error: RecordError | None = None


def document_intake(records: VectorRecords, partitions: Callable[[], int]) -> Intake[ReadDocument]:
    """Returns the intake of the indexer. `partitions`: of the documents."""
    return Intake(
        topic=DOCUMENTS.name,
        decode=lambda message: read_document(message, partitions()),
        ends=DocumentEnds(records),
        in_order=True,
    )


def read_document(message: Message, partitions: int) -> ReadDocument:
    """Returns the document of a record. A bad one has its `error`: the stage refuses it."""
    try:
        _, document = decode_document(message.key, message.value, message.headers)
        own = partition_of(message.key or b"", partitions)
        if message.source.partition != own:
            raise MisplacedError(
                "invalid_value",
                f"its key belongs in partition {own} of {partitions}, and it is in "
                f"{message.source.partition}: write with Java's default partitioner (librdkafka: "
                "murmur2_random), and never add partitions to this topic",
            )
    except RecordError as error:
        return ReadDocument(error=error)
    return ReadDocument(document)


class DocumentEnds(Ends):
    """A document that ends without passages has a record that says so, and a dead letter.

    So the position moves on. A record without a key, as a batch that cannot be unpacked, has the
    letter only. Calls may ask the brokers: they block, and raise `RetryableError`.
    """

    def __init__(self, records: VectorRecords) -> None:
        super().__init__("indexer")
        self._records = records

    def refused(self, unit: Unit[Any], error: Exception, *, group: str, now_us: int) -> Done:
        """See `Ends`."""
        reason = error.reason if isinstance(error, RecordError) else "processing_failed"
        done = super().refused(unit, error, group=group, now_us=now_us)
        if isinstance(error, MisplacedError):
            key = MISPLACED + (unit.message.key or b"")
            unit = replace(unit, message=replace(unit.message, key=key))
        return self._ended(unit, done, f"{reason}: {error}")

    def failed(self, unit: Unit[Any], part: int, error: Exception, *, now_us: int) -> Done:
        """See `Ends`."""
        done = super().failed(unit, part, error, now_us=now_us)
        assert done.failure is not None, "the loop resolves it"
        return self._ended(unit, done, f"processing_failed: {done.failure.message}")

    def _ended(self, unit: Unit[Any], done: Done, why: str) -> Done:
        record = DocumentVectors(offset=0, refused=why[:REASON_CHARS_MAX])
        return replace(done, outputs=self._records.outputs(unit, record) + done.outputs)

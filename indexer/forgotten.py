"""Finds documents that are deleted, though the null record that says so is gone.

Brokers keep null records for a while only (`delete.retention.ms`). An indexer that was away for
longer finds neither the document nor its delete, and the vectors still have it.
"""

from __future__ import annotations

import structlog

from carpool.digest import digest_of
from carpool.errors import DeploymentError
from carpool.kafka.records import Message
from indexer.corpus_logs import CorpusLogs
from schemas.codec import decode
from schemas.document import DocumentVectors
from schemas.errors import RecordError
from schemas.topics import DOCUMENTS, VECTORS

log = structlog.get_logger()


def forgotten_keys(logs: CorpusLogs, partition: int) -> list[bytes]:
    """Returns the keys with passages in a partition of vectors that the documents do not have.

    Reads both logs, and keeps 100 bytes a document. Blocks: a gigabyte takes some seconds.
    """
    log.warning("reading a partition for lost deletes", partition=partition)
    known = {digest_of(each.key or b"") for each in logs.records(DOCUMENTS.name, partition)}
    found: dict[bytes, None] = {}
    for message in logs.records(VECTORS.name, partition):
        key = message.key or b""
        if digest_of(key) not in known:
            found.pop(key, None)
            if read_vectors(message).passages:
                found[key] = None
    log.warning(
        "documents are deleted, as the log of documents has forgotten them", documents=len(found)
    )
    return list(found)


def read_vectors(message: Message) -> DocumentVectors:
    """Returns a record of vectors. Raises `DeploymentError` where this build cannot read it."""
    try:
        return decode(DocumentVectors, message.value, message.headers)
    except RecordError as error:
        raise DeploymentError(
            f"{message.source.place} cannot be read by this build: {error}. A newer indexer wrote "
            "it, or another program: deploy matching versions, and let only indexers write this "
            "topic. No document is indexed until then"
        ) from None

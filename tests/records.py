"""Builders of records for tests: each fills the required fields, and takes any field by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from carpool.endings import AskedQuery
from carpool.kafka.records import Message
from carpool.loop.stage import Done, Unit
from schemas.answer import Answer
from schemas.batch import Batch, BatchFile, BatchOptions, Round
from schemas.document import Base, Document, DocumentPassage, DocumentVectors, IndexedPassage
from schemas.files import StoredFile
from schemas.group import Group, GroupedQuery
from schemas.query import Query
from schemas.record import ClusterId, Headers, Record, Source
from schemas.retrieval import Hit, Retrieval
from schemas.topics import QUERIES
from tests.clocks import NOW_US

R = TypeVar("R", bound=Record)


def a_source(
    offset: int = 0, topic: str = QUERIES.name, partition: int = 0, timestamp_ms: int = 0
) -> Source:
    """Where a record was read."""
    return Source(topic=topic, partition=partition, offset=offset, timestamp_ms=timestamp_ms)


def a_query(query_id: str = "q", text: str | None = "why?", **fields: Any) -> Query:
    """A query; one without text has a vector of one dimension."""
    if text is None:
        fields = {"vector": b"\0\0\0\0", "embedding_model": "m", **fields}
    return Query(query_id=query_id, text=text, **fields)


def a_grouped_query(
    query: Query | str = "q", clusters: Sequence[int] = (1,), **fields: Any
) -> GroupedQuery:
    """A query of a group, or one with this id, that probes `clusters`."""
    given: dict[str, Any] = {
        "query": a_query(query) if isinstance(query, str) else query,
        "source": a_source(),
        "arrival_us": 0,
        "vector": b"\0\0\0\0",
        "clusters": tuple(map(ClusterId, clusters)),
    }
    return GroupedQuery(**given | fields)


def a_group(*queries: GroupedQuery, **fields: Any) -> Group:
    """A group of `queries`, whose clusters are theirs in ascending order."""
    given: dict[str, Any] = {
        "index_version": "v",
        "centroids_fingerprint": "c",
        "embedding_model": "m",
        "grouper": "g",
        "window_id": 1,
        "lane": 0,
        "sequence": 0,
        "queries": queries,
        "clusters": tuple(sorted({cluster for query in queries for cluster in query.clusters})),
    }
    return Group(**given | fields)


def some_hits(count: int = 2) -> tuple[Hit, ...]:
    """Hits d1, d2, ... of clusters 1, 2, ..., best first."""
    return tuple(
        Hit(doc_id=f"d{n}", score=1 - n / 10, cluster=ClusterId(n), title=f"T{n}", text=f"text {n}")
        for n in range(1, count + 1)
    )


def a_retrieval(query: Query | str = "q", hits: Sequence[Hit] = (), **fields: Any) -> Retrieval:
    """The final retrieval of a query, or of one with this id."""
    given: dict[str, Any] = {
        "query": a_query(query) if isinstance(query, str) else query,
        "source": a_source(),
        "revision": 1,
        "is_final": True,
        "index_version": "v",
        "embedding_model": "m",
        "hits": tuple(hits),
        "skipped_clusters": (),
    }
    return Retrieval(**given | fields)


def an_answer(query_id: str = "q", status: str = "ok", **fields: Any) -> Answer:
    """A terminal answer, without citations."""
    given: dict[str, Any] = {
        "query_id": query_id,
        "status": status,
        "is_final": True,
        "replayed": False,
        "attempts": 1,
        "citations": (),
        "retrieved": (),
    }
    return Answer(**given | fields)


def a_batch(batch_id: str = "b", **fields: Any) -> Batch:
    """A batch of two lines, one of which was answered, and which was asked again once."""
    given: dict[str, Any] = {
        "file": BatchFile(name="q.jsonl", sha256="s", size_bytes=9, lines=2, questions=2),
        "options": BatchOptions(top_k=3),
        "state": "running",
        "starts": (4, 0),
        "created_ms": 1,
        "updated_ms": 2,
        "runner": "r",
        "rounds": (Round(statuses=("failed",), ends=(5, 6)),),
        "counts": {"ok": 1},
    }
    return Batch(batch_id=batch_id, **given | fields)


def a_file(**fields: Any) -> StoredFile:
    """A file of two pieces."""
    given: dict[str, Any] = {"owner": "o", "name": "q.jsonl", "purpose": "batch", "created_ms": 1}
    where = {"upload": "u", "partition": 1, "start": 4, "end": 6}
    return StoredFile(file_id="file-1", size_bytes=9, sha256="s", **given | where | fields)


def a_document(**fields: Any) -> Document:
    """A document of two passages; the second has a title of its own."""
    passages = (
        DocumentPassage(text="It was built in 1889.", start=0, end=21),
        DocumentPassage(text="It is 330 m high.", title="Height"),
    )
    return Document(**{"title": "Eiffel Tower", "passages": passages, **fields})


def some_vectors(offset: int = 7, **fields: Any) -> DocumentVectors:
    """What the indexer makes of `a_document`, in two dimensions."""
    given: dict[str, Any] = {
        "topic": "t",
        "embedding_model": "m",
        "title": "Eiffel Tower",
        "passages": (
            IndexedPassage(text="It was built in 1889.", start=0, end=21),
            IndexedPassage(text="It is 330 m high.", title="Height"),
        ),
        "vectors": np.eye(2, dtype="<f2").tobytes(),
    }
    return DocumentVectors(offset=offset, **given | fields)


def a_base(name: str = "b-1", **fields: Any) -> Base:
    """A base after the first one."""
    given: dict[str, Any] = {
        "index_version": "v",
        "folder": name,
        "predecessor": "b-0",
        "position": {0: 7},
        "vectors": {0: 9},
        "rows": 2,
    }
    return Base(name=name, **given | fields)


def a_message(
    topic: str = QUERIES.name,
    offset: int = 0,
    *,
    partition: int = 0,
    key: bytes | None = None,
    value: bytes | None = b"v",
    headers: Headers = (),
    timestamp_ms: int = NOW_US // 1_000,
    received_us: int = NOW_US,
) -> Message:
    """A record as a broker gives it."""
    source = a_source(offset, topic, partition, timestamp_ms)
    return Message(source=source, key=key, value=value, headers=headers, received_us=received_us)


def a_unit(unit_id: int, record: R, message: Message | None = None, **fields: Any) -> Unit[R]:
    """A unit as the loop offers it; `message` is by default at offset `unit_id`."""
    return Unit(id=unit_id, record=record, message=message or a_message(offset=unit_id), **fields)


def asked_query(query: Query | None = None, **fields: Any) -> AskedQuery:
    """A query in hand of the searcher."""
    query = query or a_query("q-1", "Who was that?")
    given: dict[str, Any] = {
        "stage": "searcher",
        "part": (1, 0),
        "partition": 0,
        "query_id": query.query_id,
        "query": query,
        "source": a_source(),
        "headers": (),
        "attempts": 1,
    }
    return AskedQuery(**given | fields)


def a_failure(query: Query | None = None, *, is_transient: bool = True, **fields: Any) -> Done:
    """The end of a query that could not be searched."""
    return asked_query(query, **fields).failed(
        NOW_US, "index_damaged", "the disk is away", is_transient=is_transient
    )

"""Documents of the corpus: the record that puts or deletes one, and the client's calls for it."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from carpool.clock import Clock
from carpool.kafka.sizes import record_bytes
from producers.build_query import (
    SOURCE_NAME,
    HasPosition,
    QueryRecord,
    pack_vector,
)
from producers.errors import PublishError, raise_for_status
from producers.match_answers import Place
from schemas.answer import Answer, Fetched
from schemas.codec import encode
from schemas.document import Document, DocumentKey, DocumentPassage
from schemas.document_codec import decode_document
from schemas.errors import RecordError, refusal_of
from schemas.record import Headers
from schemas.topics import DOCUMENTS

TRIES = 3
"""How often a record is published of which the brokers do not say where it is."""
GivenPassage = str | Mapping[str, Any] | DocumentPassage


@dataclass(frozen=True)
class Put:
    """Where a change of a document is in `rag.documents.v1`. All in-sync copies have it."""

    partition: int
    offset: int

    @property
    def position(self) -> dict[int, int]:
        """The position of a search that sees the change, or a later one."""
        return {self.partition: self.offset}


def build_document(key: DocumentKey, document: Document | None, now_us: int) -> QueryRecord:
    """Returns the record of a revision; None deletes the document. `now_us`: epoch microseconds.

    Raises `RecordError` for what the indexer would refuse, in its words, or a record too large.
    """
    value: bytes | None = None
    headers: Headers = ()
    try:
        raw_key = key.encode()
        if document is not None:
            event = str(uuid.uuid4())
            value, headers = encode(document, event_id=event, source=SOURCE_NAME, time_us=now_us)
    except UnicodeEncodeError:
        raise RecordError("invalid_utf8", f"the id {key.shown[:80]!r} is not UTF-8") from None
    except (TypeError, OverflowError, RecursionError) as error:
        raise RecordError("wrong_type", f"it cannot be written as JSON: {error}") from None
    identity, _ = decode_document(raw_key, value, headers)
    if identity != key:
        raise RecordError("invalid_value", f"the id {key.id:.80} is the key of another document")
    if (size := record_bytes(raw_key, value, headers)) > DOCUMENTS.max_message_bytes:
        raise RecordError(
            "too_large",
            f"the document has {size:,} bytes as a record; at most {DOCUMENTS.max_message_bytes:,} "
            "are taken: cut it into several documents, such as one for each chapter",
        )
    name = raw_key.decode()
    return QueryRecord(topic=DOCUMENTS.name, query_id=name, value=value, headers=headers)


def _passage(given: GivenPassage) -> DocumentPassage:
    fields: Any = {"text": given} if isinstance(given, str) else given
    if isinstance(fields, Mapping) and not isinstance(fields.get("vector"), str | bytes | None):
        fields = {**fields, "vector": pack_vector(fields["vector"])}
    try:
        return msgspec.convert(fields, DocumentPassage)
    except msgspec.ValidationError as error:
        raise refusal_of(str(error)) from None


class DocumentCalls:
    """The calls of `Client` that change and fetch documents; `Client` has what they call."""

    _clock: Clock
    _send: Callable[[QueryRecord], Awaitable[Place | None]]
    ask: Callable[..., Awaitable[Answer]]

    async def put(
        self,
        id: str,
        *,
        text: str | None = None,
        passages: Iterable[GivenPassage] = (),
        title: str = "",
        metadata: Mapping[str, Any] | None = None,
        owner: str = "",
    ) -> Put:
        """Puts a document: its only revision from then on. Returns where it is in the log.

        Give either a `text`, which the indexer cuts into passages, or `passages`: texts, or fields
        of `DocumentPassage`, such as `vector` (numbers) with `embedding_model`. `metadata` is that
        of every passage. `owner` and `id` name the document. When the call returns, the brokers
        have it, and the indexer takes it in. Raises `RecordError`, `PublishError`.
        """
        document = Document(
            title=title or None,
            metadata=None if metadata is None else dict(metadata),
            text=text,
            passages=tuple(map(_passage, passages)),
        )
        return await self._change(DocumentKey(owner, id), document)

    async def delete(self, id: str, *, owner: str = "") -> Put:
        """Deletes a document, which need not exist. Returns and raises as `put` does."""
        return await self._change(DocumentKey(owner, id), None)

    async def fetch(
        self, *ids: str, after: HasPosition | None = None, timeout_s: float | None = None
    ) -> tuple[Fetched, ...]:
        """Returns documents, or passages with their neighbours, by the ids that hits have.

        One for each id; of one that is not there the count is 0. Raises as `ask`, and
        `AnswerFailed` where the services cannot fetch.
        """
        answer = await self.ask(fetch=ids, after=after, timeout_s=timeout_s)
        raise_for_status(answer)
        return answer.fetched

    async def _change(self, key: DocumentKey, document: Document | None) -> Put:
        record = build_document(key, document, self._clock.now_us())
        for _ in range(TRIES):  # a repeated revision changes nothing
            if (place := await self._send(record)) is not None:
                return Put(*place)
        raise PublishError("the brokers do not say where the document is. Put it again")

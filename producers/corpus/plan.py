"""Which documents of a put are sent, and which are deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import Literal, NamedTuple

import msgspec

from carpool.errors import ConfigError
from producers.build_query import QueryRecord
from producers.corpus.files import FoundDocument
from producers.documents import build_document
from schemas.document import Document, DocumentKey
from schemas.errors import RecordError

PASSAGE_BYTES = 1_000
"""Of a text that the indexer cuts, for each passage."""
GIVEN_BYTES = 8_000
"""The same of passages that are given, perhaps with vectors."""
NOT_COMPARED = "modified"
"""The field of metadata whose change alone is no change."""
End = Literal["sent", "unchanged", "deleted", "refused"]
ENDS: tuple[End, ...] = ("sent", "unchanged", "deleted", "refused")


class DocumentChange(NamedTuple):
    """What becomes of a document that was found `at` a place: a `record` that is sent, or none.

    `passages`: of the record, or what it counts for. `why`: for what is refused.
    """

    end: End
    at: str
    id: str
    record: QueryRecord | None = None
    passages: int = 1
    why: str = ""


def digest_of_content(document: Document) -> bytes:
    """Returns a digest of what counts in a revision: all but when it was modified."""
    metadata = {k: v for k, v in (document.metadata or {}).items() if k != NOT_COMPARED}
    content = (document.title or "", document.text, document.passages, metadata)
    return blake2b(msgspec.json.encode(content, order="deterministic"), digest_size=16).digest()


class PutPlan:
    """The changes that make the documents of an owner those that were found."""

    def __init__(self, owner: str, known: dict[str, bytes], now_us: Callable[[], int]) -> None:
        """`known`: the digests of the documents that the log has, by id; it becomes the plan's."""
        self._owner, self._left, self._now_us = owner, known, now_us
        self._seen = set[str]()
        self.kept = ""
        """Why nothing was deleted, where something may have been removed."""

    def changes(self, found: Iterable[FoundDocument], *, deletes: bool) -> Iterator[DocumentChange]:
        """Yields what becomes of each document that was found, and then of those that are gone.

        With `deletes` those are deleted, unless something was found whose id is not known. Raises
        `ConfigError` where nothing was found, since all would be deleted.
        """
        is_empty, unread = True, ""
        for each in found:
            is_empty, unread = False, unread or ("" if each.id else each.at)
            yield self._change(each, self._left.pop(each.id, None))
        if not (deletes and self._left):
            return
        if is_empty:
            raise ConfigError(
                f"there is no document in it, and --delete would remove all {len(self._left):,} of "
                f"{self._owner}: nothing was changed. Is it the right folder? `carpool corpus "
                "delete` removes documents by their ids"
            )
        if unread:
            self.kept = f"nothing was deleted, because {unread} cannot be read"
            return
        for id in self._left:
            record = build_document(DocumentKey(self._owner, id), None, self._now_us())
            yield DocumentChange("deleted", id, id, record)

    def _change(self, found: FoundDocument, digest: bytes | None) -> DocumentChange:
        at, id, document, why = found
        if document is not None and id in self._seen:
            document, why = None, f"there is another document {id!r}"
        if document is None:
            return DocumentChange("refused", at, id, why=why)
        self._seen.add(id)
        try:
            if digest is not None and digest == digest_of_content(document):
                return DocumentChange("unchanged", at, id)
            record = build_document(DocumentKey(self._owner, id), document, self._now_us())
        except RecordError as error:
            return DocumentChange("refused", at, id, why=str(error))
        given, size = len(document.passages), len(record.value or b"")
        passages = max(1, given, size // (GIVEN_BYTES if given else PASSAGE_BYTES))
        return DocumentChange("sent", at, id, record, passages)

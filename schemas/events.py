"""The names and versions of all records: CloudEvents `type` and `dataschema`."""

from __future__ import annotations

from schemas.answer import Answer, PartialAnswer
from schemas.batch import Batch
from schemas.cancel import Cancel
from schemas.deadletter import DeadLetterMark
from schemas.document import Base, BaseWanted, Document, DocumentVectors
from schemas.files import FilePiece, StoredFile
from schemas.group import Group
from schemas.query import Query
from schemas.record import Record
from schemas.retrieval import Retrieval

_NAMES: dict[type[Record], tuple[str, str]] = {
    Query: ("query.submitted", "query"),
    Group: ("group.planned", "group"),
    Retrieval: ("retrieval.completed", "retrieval"),
    Answer: ("answer.completed", "answer"),
    PartialAnswer: ("answer.extended", "partial-answer"),
    Cancel: ("query.cancelled", "cancel"),
    Batch: ("batch.changed", "batch"),
    StoredFile: ("file.stored", "file"),
    FilePiece: ("file.extended", "file-piece"),
    Document: ("document.put", "document"),
    DocumentVectors: ("document.indexed", "document-vectors"),
    Base: ("base.saved", "base"),
    BaseWanted: ("base.wanted", "base-wanted"),
    DeadLetterMark: ("letter.marked", "dead-letter-mark"),
}
EVENT_TYPES = {kind: f"rag.{event}" for kind, (event, _) in _NAMES.items()}
SCHEMAS = {kind: f"urn:carpool:{name}:1" for kind, (_, name) in _NAMES.items()}
"""The version of each record (CloudEvents `dataschema`). A reader refuses unknown versions."""

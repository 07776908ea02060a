"""What of a passage is stored, with metadata and without."""

from __future__ import annotations

from pathlib import Path

import msgspec

from carpool.disk.documents import DOCUMENTS_NAME, Document, DocumentStore, DocumentWriter

BUILD_ID = 7
PLAIN = Document("a", "A", "text a")
RICH = Document("b", "B", "text b", {"url": "https://b.example", "n": [1, {"deep": None}]})


def stored(folder: Path, *documents: Document) -> DocumentStore:
    writer = DocumentWriter(folder, BUILD_ID)
    for document in documents:
        writer.append(document)
    writer.close()
    return DocumentStore(folder, len(documents), BUILD_ID)


def test_metadata_is_read_as_it_was_written(tmp_path: Path) -> None:
    with stored(tmp_path, PLAIN, RICH) as store:
        assert store.get([1, 0]) == [RICH, PLAIN]


def test_a_document_without_metadata_is_stored_without_the_field(tmp_path: Path) -> None:
    with stored(tmp_path, PLAIN):
        content = (tmp_path / DOCUMENTS_NAME).read_bytes()
    assert msgspec.msgpack.decode(content) == ["a", "A", "text a"]

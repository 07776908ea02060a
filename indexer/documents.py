"""What is indexed of a document: its passages, and the vectors that it brings. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from carpool.arrays import Float32
from carpool.corpus.cut import cut_text, looks_like_markdown
from carpool.disk.documents import Passage
from indexer.corpus import bounded_metadata, passage_text
from schemas.document import (
    PASSAGES_MAX,
    Document,
    DocumentPassage,
    DocumentVectors,
    IndexedPassage,
)
from schemas.errors import Reason, RecordError


@dataclass(frozen=True, kw_only=True)
class IndexRules:
    """How documents are indexed: with the model `fingerprint`, of this `dimension`.

    A text is cut into passages of at most `chars_max` characters. Title and text of a passage have
    at most `passage_bytes_max` bytes.
    """

    fingerprint: str
    dimension: int
    chars_max: int
    passage_bytes_max: int


class IndexedDocument:
    """A document whose vectors are being collected, some texts at a time. Not thread-safe."""

    def __init__(self, document: Document, rules: IndexRules) -> None:
        """Cuts the text; checks and takes the given vectors. Raises `RecordError`."""
        self._document = document
        self._fingerprint = rules.fingerprint
        self._passages = _passages(document, rules)
        self._vectors: Float32 = np.zeros((len(self._passages), rules.dimension), dtype=np.float32)
        self._rows: list[int] = []  # to embed, and not begun
        self._begun: list[int] = []
        for row, passage in enumerate(self._passages):
            if passage.vector is None:
                self._rows.append(row)
            else:
                self._vectors[row] = _given(row, passage, rules)
        self.given = len(self._passages) - len(self._rows)
        """The number of vectors that it brought."""

    @property
    def texts_left(self) -> int:
        """The number of texts that were not begun."""
        return len(self._rows)

    def begin(self, count: int) -> None:
        """Begins with the next texts."""
        self._begun, self._rows = self._rows[:count], self._rows[count:]

    def texts(self) -> list[str]:
        """Returns the texts that were begun last, each with its title."""
        return [self._text(self._passages[row]) for row in self._begun]

    def take(self, vectors: Float32) -> None:
        """Takes the vectors of these texts: (n, dim), normalised."""
        self._vectors[self._begun] = vectors

    def _text(self, passage: DocumentPassage) -> str:
        title = (self._document.title or "") if passage.title is None else passage.title
        return passage_text(Passage("", title, passage.text))

    def record(self) -> DocumentVectors:
        """Returns the record, once no vector is missing; it does not know its offset."""
        title = self._document.title or ""
        return DocumentVectors(
            offset=0,
            embedding_model=self._fingerprint,
            title=title,
            metadata=bounded_metadata(self._document.metadata),
            passages=tuple(
                IndexedPassage(
                    text=each.text,
                    title=None if each.title == title else each.title,
                    start=each.start,
                    end=each.end,
                )
                for each in self._passages
            ),
            vectors=self._vectors.astype("<f2").tobytes(),
        )


def _passages(document: Document, rules: IndexRules) -> Sequence[DocumentPassage]:
    passages: Sequence[DocumentPassage] = document.passages
    if document.text is not None:
        passages = cut_text(
            document.text,
            chars_max=rules.chars_max,
            is_markdown=looks_like_markdown(document.text),
            title=document.title or "",
        )
        if len(passages) > PASSAGES_MAX:
            raise RecordError(
                "too_large",
                f"its text makes {len(passages)} passages of at most {rules.chars_max} "
                f"characters; a document has at most {PASSAGES_MAX}: publish it in parts, each "
                "with a key of its own",
                field="$.text",
            )
    for number, passage in enumerate(passages):
        title = (document.title or "") if passage.title is None else passage.title
        size_bytes = len(title.encode()) + len(passage.text.encode())
        if size_bytes > rules.passage_bytes_max:
            raise RecordError(
                "too_large",
                f"title and text of passage {number} have {size_bytes} bytes; at most "
                f"{rules.passage_bytes_max} are accepted (indexer.passage_bytes_max): split it",
                field=f"$.passages[{number}].text",
            )
    return passages


def _given(number: int, passage: DocumentPassage, rules: IndexRules) -> Float32:
    """Returns a given vector, normalised; it has a direction (`decode_document`).

    Raises `RecordError` that names the passage.
    """

    def bad(reason: Reason, what: str) -> RecordError:
        at = f"$.passages[{number}].vector"
        return RecordError(reason, f"the vector of passage {number} {what}", field=at)

    if passage.embedding_model != rules.fingerprint:
        raise bad(
            "wrong_model",
            f"is of the model {passage.embedding_model}, and the corpus is of "
            f"{rules.fingerprint}: send vectors of that one, or texts alone",
        )
    vector = passage.vector or b""
    if len(vector) != 4 * rules.dimension:
        raise bad(
            "wrong_dimension",
            f"has {len(vector)} bytes; {rules.dimension} numbers of float32 have "
            f"{4 * rules.dimension}",
        )
    row = np.frombuffer(vector, dtype="<f4").astype(np.float64)
    return (row / np.linalg.norm(row)).astype(np.float32)

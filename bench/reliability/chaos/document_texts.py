"""The made-up documents of a run: each passage names document, revision and passage. Pure."""

from __future__ import annotations

from schemas.document import DocumentKey

DOCUMENTS = 120
SUBJECTS = (
    "basalt kiln ferry tundra",
    "sonata quartz lagoon bishop",
    "turbine orchid saddle fjord",
    "ledger comma walrus plinth",
    "gondola thimble pollen anvil",
)
"""Words of a document: its vectors are near those of a subject. The index has not seen the last."""
PASSAGES_MAX = 3


def key_of(number: int) -> DocumentKey:
    """Returns the key of a document; those of the new subject have an owner."""
    subject = number % len(SUBJECTS)
    return DocumentKey("books" if subject == len(SUBJECTS) - 1 else "", f"doc-{number:03}")


def asked_of(number: int) -> str:
    """Returns a question about a document: words that no other one has."""
    return " ".join(f"{word}{number}" for word in ("topic", "theme", "name", "place", "year"))


def texts_of(number: int, revision: int) -> list[str]:
    """Returns the passages of a revision: it has one to `PASSAGES_MAX`."""
    own, subject = asked_of(number), SUBJECTS[number % len(SUBJECTS)]
    tags = [f"d{number}r{revision}p{n}" for n in range((number + revision) % PASSAGES_MAX + 1)]
    return [
        f"Document {number}: {tag} tells {own}, {subject}. Also {tag} ends {own}, {subject}."
        for tag in tags
    ]


def of_index() -> dict[str, str]:
    """Returns the documents that the index has from its beginning: of each the first passage."""
    numbers = [number for number in range(DOCUMENTS) if not key_of(number).owner]
    return {key_of(number).id: texts_of(number, 0)[0] for number in numbers}

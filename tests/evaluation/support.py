"""Answers to questions about three passages."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from schemas.answer import Citation, TextSpan
from schemas.batch import AnswerLine

TEXT = "The tower was built in 1889 [1]. Eiffel built it [2]."
SENTENCES = (TextSpan(start=0, end=32), TextSpan(start=33, end=len(TEXT)))


def cited(doc_id: str, sentence: int, *, supported: bool = True, by: str = "model") -> Citation:
    """A citation of a passage for a sentence of `TEXT`, from 0."""
    fields = {
        "n": 1,
        "doc_id": doc_id,
        "by": by,
        "snippet": f"What {doc_id} says.",
        "sentence": SENTENCES[sentence],
        "quote": TextSpan(start=0, end=9) if supported else None,
        "support": 0.9 if supported else 0.2,
    }
    return msgspec.convert(fields, Citation, from_attributes=True)


def an_answer(line: int, **fields: Any) -> AnswerLine:
    """An answer with two supported citations that found the passages a, b and c."""
    given: dict[str, Any] = {
        "line": line,
        "status": "ok",
        "question": f"question {line}?",
        "answer": TEXT,
        "citations": (cited("a", 0), cited("b", 1)),
        "retrieved": [{"id": each, "score": 0.5} for each in "abc"],
        "grounded": True,
        "tokens": {"input_tokens": 100, "output_tokens": 10, "cached_tokens": 60},
        "timings_ms": {"search": 2.0, "total": 40.0 * line},
    }
    return msgspec.convert(given | fields, AnswerLine, from_attributes=True)


def write(path: Path, lines: Iterable[object]) -> Path:
    """Writes JSON lines."""
    path.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in lines))
    return path


def questions(path: Path, *gold: dict[str, Any]) -> Path:
    """Writes questions with what is known of them."""
    lines = [{"text": f"question {line}?", **each} for line, each in enumerate(gold, 1)]
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return path

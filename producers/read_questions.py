"""Reads questions from files: JSON lines or plain text."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import msgspec

from carpool.errors import ConfigError
from carpool.foreign_files import refuse_foreign


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a file of questions. `workflow`: the name of a program."""

    id: str | int | None = None
    text: str | None = None
    vector: bytes | None = None
    workflow: str | None = None


def read_questions(path: Path) -> tuple[Question, ...]:
    """Returns the questions of a file: JSON lines with `text`, or plain text lines; perhaps gzip.

    Blank lines are ignored. Raises `ConfigError` that names the line.
    """
    decoder = msgspec.json.Decoder(Question)
    is_json = path.name.removesuffix(".gz").endswith((".jsonl", ".json", ".ndjson"))
    questions: list[Question] = []
    try:
        with _open(path) as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    questions.append(
                        decoder.decode(line) if is_json else Question(text=line.decode().strip())
                    )
                    if not questions[-1].text:
                        raise ConfigError(f"{path}:{number}: the question has no `text`")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        refuse_foreign(path, line if number == 1 else b"")
        raise ConfigError(
            f"{path}:{number}: not a question: {error}; a line is like "
            f"{{'id': 'q-1', 'text': '...'}}"
        ) from error
    except (OSError, EOFError) as error:
        raise ConfigError(f"cannot read questions from {path}: {error}") from error
    if not questions:
        raise ConfigError(f"{path} has no question")
    return tuple(questions)


def _open(path: Path) -> gzip.GzipFile | io.BufferedReader:
    return gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb")

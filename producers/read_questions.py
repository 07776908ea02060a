"""Reads questions from files (JSON lines or plain text), and vectors from `.npy` without NumPy."""

from __future__ import annotations

import gzip
import io
import mmap
import re
import struct
from collections.abc import Sequence
from pathlib import Path

import msgspec

from carpool.errors import ConfigError
from carpool.foreign_files import refuse_foreign

_SHAPE = re.compile(r"'shape':\s*\((\d+),\s*(\d+)\s*,?\)")
_DTYPE = re.compile(r"'descr':\s*'<f([248])'")
_NPY_MAGIC = b"\x93NUMPY"


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a file of questions. `at_ms`: its time in a recorded load."""

    id: str | int | None = None
    text: str | None = None
    vector: bytes | None = None
    at_ms: float | None = None


def read_questions(path: Path, limit: int | None = None) -> tuple[Question, ...]:
    """Returns the questions of a file: JSON lines with `text`, or plain text lines; perhaps gzip.

    Blank lines are ignored. Raises `ConfigError` that names the line.
    """
    decoder = msgspec.json.Decoder(Question)
    is_json = path.name.removesuffix(".gz").endswith((".jsonl", ".json", ".ndjson"))
    questions: list[Question] = []
    try:
        with _open(path) as lines:
            for number, line in enumerate(lines, start=1):
                if limit is not None and len(questions) >= limit:
                    break
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


class NpyRows(Sequence[bytes]):
    """The rows of a `.npy` file as little-endian float32 bytes.

    The file is (rows, dim) float16, float32 or float64 in C order. It is mapped into memory. Raises
    `ConfigError` for any other file.
    """

    def __init__(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot read vectors from {path}: {error}") from error
        if self._bytes[:6] != _NPY_MAGIC:
            refuse_foreign(path, self._bytes[:16])
            raise ConfigError(f"{path} is not a .npy file")
        width = 2 if self._bytes[6] == 1 else 4
        header_size = int.from_bytes(self._bytes[8 : 8 + width], "little")
        header = self._bytes[8 + width : 8 + width + header_size].decode("latin-1")
        shape, dtype = _SHAPE.search(header), _DTYPE.search(header)
        if shape is None or dtype is None or "'fortran_order': False" not in header:
            raise ConfigError(
                f"{path} must contain (rows, dim) little-endian floats in C order; its header is "
                f"{header.strip()}"
            )
        self._rows, self.dim = int(shape[1]), int(shape[2])
        self._item_size = int(dtype[1])
        self._format = f"<{self.dim}{ {2: 'e', 4: 'f', 8: 'd'}[self._item_size] }"
        self._start = 8 + width + header_size
        if len(self._bytes) < self._start + self._rows * self.dim * self._item_size:
            raise ConfigError(
                f"{path} is truncated: its header says {self._rows} rows of {self.dim}"
            )

    def __len__(self) -> int:
        """Returns the number of rows."""
        return self._rows

    def __getitem__(self, index: int) -> bytes:  # type: ignore[override]
        """Returns row `index` as `4 * dim` bytes. Raises `IndexError` after the end."""
        if not 0 <= index < self._rows:
            raise IndexError(index)
        size = self.dim * self._item_size
        row = self._bytes[self._start + index * size : self._start + (index + 1) * size]
        return (
            row
            if self._item_size == 4
            else struct.pack(f"<{self.dim}f", *struct.unpack(self._format, row))
        )


def with_vectors(
    questions: Sequence[Question], vectors: NpyRows, *, keep_text: bool = True
) -> tuple[Question, ...]:
    """Returns the questions with the vectors of their rows. Raises `ConfigError` for too few."""
    if len(vectors) < len(questions):
        raise ConfigError(
            f"there are {len(questions)} questions but only {len(vectors)} vectors; rows must match"
        )
    return tuple(
        msgspec.structs.replace(
            question, vector=vectors[row], text=question.text if keep_text else None
        )
        for row, question in enumerate(questions)
    )

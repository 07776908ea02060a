"""The file of a batch: it is checked as a whole before a line is sent, and read again by line."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import msgspec

from carpool.errors import ConfigError
from carpool.foreign_files import refuse_foreign
from producers.batch.lines import BatchLine, Kind, kind_of, read_line
from schemas.answer import AnswerError
from schemas.batch import AnswerLine, BatchFile, BatchOptions
from schemas.codec import BYTE_ORDER_MARK
from schemas.errors import RecordError

LINE_BYTES_MAX = 1 << 20
"""A longer line is refused; the largest question has 256 KiB."""
REPORT_LINES = 10_000
DIGEST_BYTES = 16
FORMS = (
    'A line is JSON such as {"custom_id": "q-1", "text": "..."}, a line of OpenAI\'s batches, or '
    "plain text"
)
START_BYTES = 4_096


@dataclass(kw_only=True)
class InputFile:
    """An open file of questions that was checked.

    `refused` and `blank`: the lines that cannot be asked, and those without a question. `equal`:
    how many lines ask what an earlier one asks. `first_refused`: in words.
    """

    path: Path
    options: BatchOptions
    kind: Kind
    batch_id: str
    facts: BatchFile
    refused: array[int]
    blank: array[int]
    equal: int
    first_refused: str
    _file: BinaryIO = field(repr=False)
    _starts: array[int] = field(repr=False)
    _stamp: tuple[int, ...] = field(repr=False)

    def line(self, number: int) -> BatchLine:
        """Returns the question of a line that was not refused; the first is 1.

        Raises `ConfigError` where the file was changed since it was checked.
        """
        if _stamp(self._file) != self._stamp:
            raise ConfigError(
                f"{self.path} was changed while it was asked: nothing more is sent. Give the "
                "command again: the changed file is another batch, and needs another --out"
            )
        start, end = self._starts[number - 1], self._starts[number]
        self._file.seek(start)
        return read_line(self.kind, _bare(self._file.read(end - start)), self.options)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _stamp(file: BinaryIO) -> tuple[int, ...]:
    found = os.fstat(file.fileno())
    return found.st_size, found.st_mtime_ns


def _bare(line: bytes) -> bytes:
    return line.removeprefix(BYTE_ORDER_MARK).strip()


def open_input(
    path: Path, options: BatchOptions, errors: BinaryIO, report: Callable[[int], None]
) -> InputFile:
    """Returns the file after all its lines were checked; writes those that cannot be asked.

    Calls `report` with the number of lines so far. Takes 100 bytes of memory a line while it
    checks, then 8. Blocks. Raises `ConfigError` for a file that cannot be read, of another format,
    or without a question.
    """
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is no file: the lines of a batch are read again later")
    try:
        file = path.open("rb")
    except OSError as error:
        raise ConfigError(f"cannot read questions from {path}: {error.strerror}") from error
    try:
        return _Check(path, file, options, errors).run(report)
    except BaseException:
        file.close()
        raise


class _Check:
    """A pass over all lines."""

    def __init__(self, path: Path, file: BinaryIO, options: BatchOptions, errors: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._options = options
        self._errors = errors
        self._digest = hashlib.sha256()
        self._kind: Kind | None = None
        self._first = ""
        self._ids = set[int]()
        self._questions = array("Q")

    def run(self, report: Callable[[int], None]) -> InputFile:
        refuse_foreign(self._path, self._file.read(START_BYTES))
        self._file.seek(0)
        stamp, starts = _stamp(self._file), array("Q", [0])
        refused, blank = array("Q"), array("Q")
        for number, (line, size) in enumerate(self._lines(), start=1):
            starts.append(starts[-1] + size)
            if not _bare(line):
                blank.append(number)
                continue
            try:
                self._check(line, size)
            except RecordError as error:
                refused.append(number)
                self._first = self._first or f"line {number}: {error}"
                self._errors.write(_refused_line(number, _bare(line), error))
            if number % REPORT_LINES == 0:
                report(number)
        if self._kind is None:
            why = f": {self._first}. {FORMS}" if self._first else ""
            raise ConfigError(f"{self._path} has no question{why}")
        sha256 = self._digest.hexdigest()
        self._digest.update(msgspec.json.encode(self._options, order="deterministic"))
        facts = BatchFile(
            name=self._path.name,
            sha256=sha256,
            size_bytes=starts[-1],
            lines=len(starts) - 1,
            questions=len(starts) - 1 - len(refused) - len(blank),
            refused=len(refused),
        )
        return InputFile(
            path=self._path,
            options=self._options,
            kind=self._kind,
            batch_id=self._digest.hexdigest()[: 2 * DIGEST_BYTES],
            facts=facts,
            refused=refused,
            blank=blank,
            equal=len(self._questions) - len(set(self._questions)),
            first_refused=self._first,
            _file=self._file,
            _starts=starts,
            _stamp=stamp,
        )

    def _check(self, line: bytes, size: int) -> None:
        """Raises `RecordError` for a line that cannot be asked, or whose id another one has."""
        if size > len(line):
            why = f"it has {size:,} bytes; at most {LINE_BYTES_MAX:,} are read"
            raise RecordError("too_large", why)
        self._kind = self._kind or kind_of(_bare(line))
        found = read_line(self._kind, _bare(line), self._options)
        found.record("q", 0)
        if found.custom_id is not None:
            if (known := _hash_of(found.custom_id)) in self._ids:
                why = f"custom_id: an earlier line has the id {found.custom_id!r}"
                raise RecordError("invalid_value", why, field="$.custom_id")
            self._ids.add(known)
        self._questions.append(_hash_of(repr((found.text, found.arguments))))

    def _lines(self) -> Iterator[tuple[bytes, int]]:
        """Yields each line, at most `LINE_BYTES_MAX` of it, and its size."""
        while line := self._file.readline(LINE_BYTES_MAX):
            self._digest.update(line)
            size, last = len(line), line
            while len(last) == LINE_BYTES_MAX and not last.endswith(b"\n"):
                last = self._file.readline(LINE_BYTES_MAX)
                self._digest.update(last)
                size += len(last)
            yield line, size


def _refused_line(number: int, content: bytes, error: RecordError) -> bytes:
    try:
        found = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = None
    fields = found if isinstance(found, dict) else {}
    custom_id, text = fields.get("custom_id"), fields.get("text", fields.get("question"))
    why = AnswerError(type=error.reason, message=str(error), retryable=False, stage="client")
    line = AnswerLine(
        line=number,
        status="refused",
        custom_id=None if custom_id is None else str(custom_id),
        question=text if isinstance(text, str) else None,
        error=why,
    )
    return msgspec.json.encode(line) + b"\n"


def _hash_of(text: str) -> int:
    content = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest())

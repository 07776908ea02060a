"""The output of a batch: one JSON line for each answer, appended; no whole line is removed."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from carpool.errors import ConfigError
from producers.batch.input_file import InputFile
from schemas.answer import Answer
from schemas.batch import AnswerLine

RETRY_S = 1.0
BLOCK_BYTES = 1 << 20
SAME = set(Answer.__struct_fields__) & set(AnswerLine.__struct_fields__)
"""What an answer and its line of output have alike."""
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(AnswerLine)


class OutputFile:
    """An output that is appended to, by one process at a time. One thread. Close it.

    `waits` is called while another process has the file, or the disk is full; where it returns
    False, the wait ends, and what was to be done is not.
    """

    waits: Callable[[str], bool]

    def __init__(self, path: Path) -> None:
        """Raises `ConfigError` where the file cannot be written."""
        self.path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise ConfigError(f"cannot write answers to {path}: {error.strerror}") from error

    def begin(self) -> bool:
        """Waits until no other process has the file; cuts off half a line, of one that was killed.

        Returns False where it waited in vain.
        """
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not self.waits(f"another process writes {self.path}: waiting for its end"):
                    return False
                time.sleep(RETRY_S)
            else:
                os.ftruncate(self._file, _end_of_lines(self._file))
                return True

    def read(self) -> Iterator[AnswerLine]:
        """Yields the lines that the file has. Raises `ConfigError` for a line that is none."""
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    return  # half a line, before `begin`
                try:
                    yield _decoder.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise ConfigError(
                        f"{self.path}:{number} is no line of a batch's output ({error}): give "
                        "another --out"
                    ) from None

    def append(self, lines: list[AnswerLine]) -> None:
        """Appends lines. On a full disk it waits for space, and goes on with the rest."""
        content = memoryview(b"".join(_encode(line) + b"\n" for line in lines))
        while content:
            try:
                content = content[os.write(self._file, content) :]
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                if not self.waits(f"the disk of {self.path} is full: waiting for space"):
                    return
                time.sleep(RETRY_S)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)


def line_of(source: InputFile, line: int, answer: Answer, round: int) -> AnswerLine:
    """Returns the line of output of an answer to a line. Raises as `InputFile.line`."""
    asked, made_by = source.line(line), answer.provenance
    same: dict[str, Any] = {name: getattr(answer, name) for name in SAME}
    return AnswerLine(
        line=line,
        custom_id=asked.custom_id,
        question=asked.text,
        tokens=answer.usage,
        index_version=None if made_by is None else made_by.index_version,
        id=answer.query_id,
        round=round,
        **same,
    )


def _end_of_lines(file: int) -> int:
    """Returns the offset after the last line that has an end."""
    end = os.fstat(file).st_size
    while end:
        start = max(0, end - BLOCK_BYTES)
        if (last := os.pread(file, end - start, start).rfind(b"\n")) >= 0:
            return start + last + 1
        end = start
    return 0


@contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """Gives a file to write, which then replaces `path`, as a whole."""
    made = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with made.open("wb") as file:
            yield file
        os.replace(made, path)
    finally:
        made.unlink(missing_ok=True)


def write_ordered(sources: Sequence[Path], to: Path, lines: int) -> None:
    """Writes the last line of `sources` for each line of the input, in the input's order."""
    files = [path.open("rb") for path in sources if path.exists()]
    starts = array("q", [-1]) * (lines + 1)
    try:
        for which, file in enumerate(files):
            at = 0
            for content in file:
                starts[_decoder.decode(content).line] = at * len(files) + which
                at += len(content)
        with replaced(to) as ordered:
            for start in starts:
                if start >= 0:
                    at, which = divmod(start, len(files))
                    files[which].seek(at)
                    ordered.write(files[which].readline())
    finally:
        for file in files:
            file.close()

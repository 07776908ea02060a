"""The output of a batch: one JSON line for each answer, appended; no whole line is removed."""

from __future__ import annotations

import errno
import os
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Self

import msgspec

from carpool.errors import ConfigError
from schemas.batch import AnswerLine

RETRY_S = 1.0
BLOCK_BYTES = 1 << 20
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(AnswerLine)


class OutputFile:
    """An output that is appended to. One thread. Close it."""

    def __init__(self, path: Path, waits: Callable[[str], None]) -> None:
        """Opens the file, and cuts off half a line at its end, of a process that was killed.

        `waits` is called again and again while the disk is full. Raises `ConfigError`.
        """
        self.path = path
        self._waits = waits
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            os.ftruncate(self._file, _end_of_lines(self._file))
        except OSError as error:
            raise ConfigError(f"cannot write answers to {path}: {error.strerror}") from error

    def read(self) -> Iterator[AnswerLine]:
        """Yields the lines that the file has. Raises `ConfigError` for a line that is none."""
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
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
                self._waits(f"the disk of {self.path} is full: waiting for space")
                time.sleep(RETRY_S)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


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

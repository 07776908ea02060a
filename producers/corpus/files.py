"""Reads documents from a folder, a file or standard input: Markdown, text, and JSON lines."""

from __future__ import annotations

import gzip
import io
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import msgspec

from carpool.errors import ConfigError
from carpool.foreign_files import refuse_foreign
from schemas.codec import BYTE_ORDER_MARK
from schemas.document import Document, DocumentPassage
from schemas.errors import refusal_of
from schemas.topics import DOCUMENTS

MARKDOWN = (".md", ".markdown")
TEXTS = (*MARKDOWN, ".txt")
LINES = (".jsonl", ".jsonl.gz")
GZIP_MAGIC = b"\x1f\x8b"
LINE_BYTES_MAX = 4 << 20
"""Of a line of JSON, in which a character may take 12 bytes."""
TITLE_CHARS_MAX = 200
_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(.+)")
_MARKS = re.compile(r"!?\[([^\]]*)\]\([^)]*\)|[`*]|(?:^|[ \t]+)#+\s*$")
_FENCE = re.compile(r" {0,3}(```|~~~)")


class FoundDocument(NamedTuple):
    """A document that was found `at` a file or a line; without one, `why` it cannot be taken.

    `id`: "" where it is not known.
    """

    at: str
    id: str = ""
    document: Document | None = None
    why: str = ""


class _DocumentLine(msgspec.Struct):
    id: str | int | None = None
    bare_id: str | int | None = msgspec.field(name="_id", default=None)
    title: str | None = None
    text: str | None = None
    metadata: dict[str, Any] | None = None
    passages: tuple[DocumentPassage, ...] = ()


_decoder = msgspec.json.Decoder(_DocumentLine)


class Root:
    """What is put: a folder, a file, or "-". Iterating reads it in order, and blocks.

    `owner`: the name that its documents have by default; "": none. `is_whole`: what is not in it
    was removed from it. `passed_over`: files of other kinds so far, by their endings.
    """

    def __init__(self, name: str, stdin: BinaryIO) -> None:
        """Raises `ConfigError` for what is not there, and for a file of another kind."""
        self._name, self._stdin, self._path = name, stdin, Path(name)
        self.passed_over = Counter[str]()
        self.is_whole, self.owner = True, ""
        if name == "-":
            return
        if not self._path.exists():
            raise ConfigError(f"there is no file or folder {name}")
        if self._path.is_dir():
            self.owner = self._path.resolve().name
        elif name.lower().endswith(LINES):
            self.owner = self._path.name[: self._path.name.lower().rindex(".jsonl")]
        elif name.lower().endswith(TEXTS):
            self.is_whole, self.owner = False, self._path.parent.resolve().name
        else:
            raise ConfigError(
                f"{name} is not taken: documents are {', '.join(TEXTS + LINES)}. Convert it to "
                "Markdown, such as with pandoc"
            )

    def __iter__(self) -> Iterator[FoundDocument]:
        if self._name == "-":
            stdin = io.BufferedReader(cast(io.RawIOBase, self._stdin))
            return _lines(Path("FILE"), "line ", stdin)
        return self._walk() if self._path.is_dir() else _file(self._path, self._path.name)

    def _walk(self) -> Iterator[FoundDocument]:
        unread: list[OSError] = []
        for folder, folders, names in os.walk(self._path, onerror=unread.append):
            folders[:] = sorted(each for each in folders if not each.startswith("."))
            for name in sorted(each for each in names if not each.startswith(".")):
                path = Path(folder, name)
                if name.lower().endswith(TEXTS + LINES) and path.is_file():
                    yield from _file(path, path.relative_to(self._path).as_posix())
                else:
                    self.passed_over[path.suffix] += 1
        for error in unread:
            yield FoundDocument(str(error.filename), why=f"it cannot be read: {error.strerror}")


def _file(path: Path, id: str) -> Iterator[FoundDocument]:
    at, has_lines = str(path), path.name.lower().endswith(LINES)
    try:
        if has_lines:
            with path.open("rb") as file:
                yield from _lines(path, f"{at}:", file)
        else:
            yield _text(path, at, id)
    except OSError as error:
        id = "" if has_lines else id
        yield FoundDocument(at, id, why=f"it cannot be read: {error.strerror}")


def _text(path: Path, at: str, id: str) -> FoundDocument:
    about = path.stat()
    if about.st_size > DOCUMENTS.max_message_bytes:
        why = f"it has {about.st_size:,} bytes; at most {DOCUMENTS.max_message_bytes:,} are taken"
        return FoundDocument(at, id, why=f"{why}: cut it into several files")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        why = f"it is not UTF-8 (byte {error.start}): convert it, such as with iconv"
        return FoundDocument(at, id, why=why)
    if not text.strip():
        return FoundDocument(at, id, why="it is empty")
    title = first_heading(text) if path.suffix.lower() in MARKDOWN else ""
    metadata = {"path": id}
    with suppress(ValueError, OverflowError):  # a year beyond 9999
        moment = datetime.fromtimestamp(int(about.st_mtime), UTC).replace(tzinfo=None)
        metadata["modified"] = f"{moment.isoformat()}Z"
    return FoundDocument(at, id, Document(title=title or path.name, text=text, metadata=metadata))


def first_heading(text: str) -> str:
    """Returns the first heading of a Markdown text, which `#` begins; "" without one."""
    lines, fence = text.split("\n"), ""
    if lines[0].rstrip() == "---" and "---" in lines[1:]:  # a head of YAML, with its comments
        lines = lines[lines.index("---", 1) + 1 :]
    for line in lines:
        if mark := _FENCE.match(line):
            fence = "" if fence == mark[1] else fence or mark[1]
        elif not fence:
            found = _HEADING.match(line[:TITLE_CHARS_MAX])
            if found and (title := _MARKS.sub(r"\1", found[1]).strip()):
                return title
    return ""


def _lines(path: Path, at: str, file: io.BufferedReader[Any]) -> Iterator[FoundDocument]:
    number = 0
    # The caller closes `file`.
    stream = gzip.open(file) if file.peek(2)[:2] == GZIP_MAGIC else file  # noqa: SIM115
    try:
        while line := stream.readline(LINE_BYTES_MAX):
            number += 1
            if number == 1:
                refuse_foreign(path, line)
            if len(line) == LINE_BYTES_MAX:
                yield FoundDocument(f"{at}{number}", why=f"it has {LINE_BYTES_MAX:,} bytes or more")
                while line and not line.endswith(b"\n"):
                    line = stream.readline(LINE_BYTES_MAX)
            elif line.strip():
                yield _line(f"{at}{number}", line.removeprefix(BYTE_ORDER_MARK))
    except (EOFError, OSError, zlib.error) as error:
        yield FoundDocument(f"{at}{number + 1}", why=f"it is damaged or cut short: {error}")
    except ConfigError as error:
        yield FoundDocument(f"{at}{number}", why=str(error))


def _line(at: str, line: bytes) -> FoundDocument:
    try:
        found = _decoder.decode(line)
    except msgspec.ValidationError as error:
        return FoundDocument(at, why=str(refusal_of(str(error))))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return FoundDocument(at, why=f"it is not JSON: {error}")
    id = found.bare_id if found.id is None else found.id
    if id is None:
        return FoundDocument(at, why="it has no `id`")
    title, text, passages = found.title or "", found.text, found.passages
    document = Document(title=title, text=text, metadata=found.metadata, passages=passages)
    return FoundDocument(at, str(id), document)

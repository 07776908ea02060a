"""Reads a corpus: JSON lines (plain or gzip) become passages; bad and repeated ones are found."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec

from carpool.digest import digest_of
from carpool.disk.documents import Passage
from carpool.errors import ConfigError
from carpool.foreign_files import refuse_foreign
from indexer.plan.state import LineProblem
from schemas.record import well_formed

GZIP_MAGIC = b"\x1f\x8b"
ID_BYTES_MAX = 512
METADATA_BYTES_MAX = 2_048
"""Metadata of a passage in the index, as JSON. It is in every hit and citation of the passage."""
CHUNK_BYTES = 1 << 20
LINE_BYTES_MAX = 4 << 20
"""Of one line, metadata included: it is in memory whole."""
_BOM = b"\xef\xbb\xbf"
_NAMES = {"id": ("id", "_id"), "text": ("text", "contents"), "title": ("title",)}
"""The names of a field, the first that a line has; `_id` is BEIR's, `contents` Anserini's."""


class _Line(msgspec.Struct, frozen=True):
    id: str | int | float
    text: str
    title: str | None = None
    metadata: dict[str, Any] | None = None


_decoder = msgspec.json.Decoder(dict[str, Any])


class CorpusReader:
    """Iterates over a corpus: a `Passage` for a good line, a `LineProblem` for a bad one.

    `position_bytes` of `size_bytes` of the file have been read. `line_number`, from 1, is the line
    that was yielded last. `notes`: what was made of odd lines, with the count of documents. Memory:
    one line, and 100 bytes a document. Raises `ConfigError` where the file ends too early.
    """

    def __init__(
        self,
        path: Path,
        *,
        passage_bytes_max: int,
        line_bytes_max: int = LINE_BYTES_MAX,
        fields: Mapping[str, str] | None = None,
    ) -> None:
        """`fields`: the names of `id`, `text` or `title` in this corpus, where they are others."""
        self._path = path
        self._passage_bytes_max = passage_bytes_max
        self._line_bytes_max = line_bytes_max
        self._names = _NAMES | {field: (name,) for field, name in (fields or {}).items()}
        self._ids: set[bytes] = set()  # their digests: texts take more memory
        self.notes: Counter[str] = Counter()
        with _reading("corpus", path):
            self.size_bytes = path.stat().st_size
        self.position_bytes = self.line_number = 0

    def __iter__(self) -> Iterator[Passage | LineProblem]:
        """Yields documents and problems in the order of the lines. Blocks."""
        self.line_number = 0
        self.notes.clear()
        self._ids.clear()
        with _reading("corpus", self._path), self._path.open("rb") as raw:
            try:
                for line in self._lines(raw):
                    self.line_number += 1
                    self.position_bytes = raw.tell()
                    if line is None or line.strip():
                        found = self._read(line)
                        yield (
                            LineProblem(line=self.line_number, why=found)
                            if isinstance(found, str)
                            else found
                        )
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise ConfigError(
                    f"the corpus {self._path} is damaged or cut short after line "
                    f"{self.line_number} ({error}); copy it again"
                ) from error

    def _lines(self, raw: IO[bytes]) -> Iterator[bytes | None]:
        """Yields lines without their end; None for a line longer than allowed, which is skipped."""
        magic = raw.read(2)
        raw.seek(0)
        # The caller closes `raw`.
        stream = gzip.open(raw, "rb") if magic == GZIP_MAGIC else raw  # noqa: SIM115
        is_first = True
        while line := stream.readline(self._line_bytes_max + 1):
            if is_first:
                refuse_foreign(self._path, line)
            if len(line) > self._line_bytes_max and not line.endswith(b"\n"):
                while rest := stream.readline(CHUNK_BYTES):
                    if rest.endswith(b"\n"):
                        break
                yield None
            else:
                yield line.removeprefix(_BOM) if is_first else line
            is_first = False

    def _read(self, line: bytes | None) -> Passage | str:
        """The document of a line, or what is wrong with it."""
        if line is None:
            return f"the line is longer than {self._line_bytes_max} bytes"
        try:
            fields, notes = _decoded(line)
            found = self._named(fields, notes)
        except msgspec.ValidationError as error:
            return f"wrong shape: {error}"
        except (msgspec.DecodeError, RecursionError) as error:
            return f"not JSON: {error}"
        except UnicodeDecodeError as error:
            return f"not UTF-8: {error.reason}"
        metadata = bounded_metadata(found.metadata)
        document = Passage(str(found.id), found.title or "", found.text, metadata)
        if why := self._unfit(document):
            return why
        if (digest := digest_of(document.doc_id.encode())) in self._ids:
            return f"duplicate id {document.doc_id[:80]!r}"
        self._ids.add(digest)
        self.notes.update(notes)
        return document

    def _named(self, fields: dict[str, Any], notes: set[str]) -> _Line:
        """The fields under our names. Raises `ValidationError`."""
        line = {"metadata": fields.get("metadata")}
        for field, names in self._names.items():
            name = next((name for name in names if name in fields), names[0])
            line[field] = fields.get(name)
            if name != names[0]:
                notes.add(f"`{field}` is read from `{name}`")
            elif name not in fields and field != "title":
                raise msgspec.ValidationError(
                    f"no `{name}` among its fields {', '.join(fields):.200}: name it with "
                    f"--{field}-field"
                )
        return msgspec.convert(line, _Line)

    def _unfit(self, document: Passage) -> str | None:
        id_bytes = len(document.doc_id.encode())
        passage_bytes = len(document.title.encode()) + len(document.text.encode())
        if not document.doc_id.strip():
            return "`id` is empty"
        if id_bytes > ID_BYTES_MAX:
            return f"`id` has {id_bytes} bytes; at most {ID_BYTES_MAX} are accepted"
        if any(unicodedata.category(character) == "Cc" for character in document.doc_id):
            return "`id` contains control characters"
        if not document.text.strip():
            return "`text` is empty"
        if passage_bytes > self._passage_bytes_max:
            return (
                f"too long: title and text have {passage_bytes} bytes; at most "
                f"{self._passage_bytes_max} are accepted (indexer.passage_bytes_max); split it "
                "into passages"
            )
        return None


def _decoded(line: bytes) -> tuple[dict[str, Any], set[str]]:
    """The object of a line, and what was changed to decode it. Raises as msgspec's decoder."""
    try:
        return _decoder.decode(line), set()
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        notes = set()

        def number(text: str) -> float | None:
            if math.isfinite(value := float(text)):
                return value
            notes.add("a number that is not finite became null")
            return None

        try:  # Python takes NaN, 1e400 and half surrogate pairs, which JSON does not have
            found = json.loads(line.decode(), parse_float=number, parse_constant=number)
            text = json.dumps(found, ensure_ascii=False)
        except (ValueError, RecursionError):
            raise error from None
        if (fit := well_formed(text)) != text:
            notes.add("half of a surrogate pair became U+FFFD")
        return _decoder.decode(fit), notes


def bounded_metadata(metadata: dict[str, Any] | None) -> dict[str, Any] | None:
    """Returns the fields that fit into `METADATA_BYTES_MAX`: `url` first, then in their order.

    A field that does not fit, or cannot be stored (a number beyond 64 bits), is left out, and those
    after it are tried; None where none is left.
    """
    kept: dict[str, Any] = {}
    size_bytes = 1  # the first brace; each field ends in a comma or the last brace
    for name, value in sorted((metadata or {}).items(), key=lambda field: field[0] != "url"):
        try:
            msgspec.msgpack.encode(value)
            field_bytes = len(msgspec.json.encode({name: value})) - 1
        except (OverflowError, RecursionError):
            continue
        if size_bytes + field_bytes <= METADATA_BYTES_MAX:
            kept[name] = value
            size_bytes += field_bytes
    return kept or None


def passage_text(document: Passage) -> str:
    """Returns the text to embed: title, full stop, text; the text alone if there is no title."""
    return f"{document.title}. {document.text}" if document.title else document.text


def file_sha256(path: Path, what: str, on_bytes: Callable[[int], None] = lambda _: None) -> str:
    """Returns the SHA-256 of a file. Blocks. Raises `ConfigError` that names `what`."""
    digest = hashlib.sha256()
    with _reading(what, path), path.open("rb") as file:
        while block := file.read(CHUNK_BYTES):
            digest.update(block)
            on_bytes(len(block))
    return digest.hexdigest()


@contextmanager
def _reading(what: str, path: Path) -> Iterator[None]:
    """Turns an `OSError` into a `ConfigError` that names `what` and `path`."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"cannot read the {what} {path}: {error.strerror}; check the path"
        ) from error

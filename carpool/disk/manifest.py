"""The manifest: what an index is, its files and checksums. It is written last."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from carpool.codes.codec import CodeLayout
from carpool.disk.files import damage, open_regular, read_checked, write_atomically
from carpool.disk.pages import PageLayout
from carpool.errors import ConfigError
from schemas.document import Position

MANIFEST_NAME = "manifest.json"
FORMAT = "v2"
"""What a build writes and reads."""
ZERO_CLUSTER = "zero_cluster"
FEATURES = (ZERO_CLUSTER,)
"""What a manifest may require of its reader beyond its format."""

MANIFEST_BYTES_MAX = 8 << 20
"""Limit of a manifest; its largest field has some ten bytes for each cluster."""
COUNT_MAX = 1 << 40
"""Limit of every count, so that products of counts stay small."""

Positive = Annotated[int, msgspec.Meta(ge=1, le=COUNT_MAX)]
Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]
NonNegative = Annotated[int, msgspec.Meta(ge=0)]


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the index as it was written."""

    size_bytes: NonNegative
    crc32: NonNegative


class RecallRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a search of `nprobe` clusters reached, measured with questions that did not choose it.

    `recall`: the share of the best results of all rows that were found; `target`: what nprobe was
    chosen for. `rows_read`, `read_bytes`: a question; `cpu_us`: to scan codes, None without codes.
    """

    target: Annotated[float, msgspec.Meta(gt=0, le=1)]
    nprobe: Positive
    recall: Annotated[float, msgspec.Meta(ge=0, le=1)]
    rows_read: float
    read_bytes: NonNegative
    cpu_us: NonNegative | None = None


class RecallTable(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a table, by rising target. `questions`: how many it was measured with."""

    top_k: Positive
    questions: Positive
    rows: tuple[RecallRow, ...]

    def row_for(self, target: float) -> RecallRow:
        """Returns the first row that promises `target`, or the last."""
        return next((row for row in self.rows if row.target >= target), self.rows[-1])


class BaseFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Which state of the corpus an index has that was saved; see `schemas.document.Base`."""

    name: str = ""
    predecessor: str | None = None
    position: Position
    vectors: Position
    topic: str = ""
    vectors_topic: str = ""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What an index is. Cluster ids are valid only for one `centroids_fingerprint`.

    `recall` says what `carpool index tune` measured. `files` lists all files except the manifest.
    `build_id` is part of every checksum of the segments, `documents_build_id` of the documents.
    `codes`: how the codes of all rows are arranged. `base`: of an index that was saved. A reader
    that does not support all that `requires` names refuses the index. Unknown fields are ignored.
    """

    format: str
    requires: tuple[str, ...] = ()
    index_version: str
    dimension: Positive
    metric: Literal["inner_product"]
    nlist: Positive
    codes: tuple[CodeLayout, ...] = ()
    vector_dtype: Literal["float32", "float16"]
    page_bytes: Positive
    segment_count: Positive
    build_id: NonNegative = msgspec.field(name="generation")
    documents_build_id: NonNegative = msgspec.field(name="documents_generation")
    embedding_model: str
    embedding_model_name: str
    centroids_fingerprint: str
    row_count: Count
    nprobe_default: Positive
    recall: RecallTable | None = None
    base: BaseFacts | None = None
    files: dict[str, FileEntry] = {}

    @property
    def zero_clusters(self) -> tuple[int, ...]:
        """The number of the zero cluster, `nlist`, where there is one.

        Its centroid is zero. It has the rows that are far from all others, no query probes it, and
        every search scans it.
        """
        return (self.nlist,) if ZERO_CLUSTER in self.requires else ()

    @property
    def cluster_count(self) -> int:
        """The number of clusters, with the zero cluster."""
        return self.nlist + len(self.zero_clusters)

    def problems(self) -> list[str]:
        """Returns the contradictions between fields; empty for a good manifest."""
        found = []
        if self.nprobe_default > self.nlist:
            found.append(f"nprobe_default {self.nprobe_default} is more than nlist {self.nlist}")
        if self.recall is not None and not self.recall.rows:
            found.append("its table of recall has no rows")
        if self.recall is not None and any(row.nprobe > self.nlist for row in self.recall.rows):
            found.append(f"its table of recall probes more than {self.nlist} clusters")
        if self.segment_count > len(self.files):
            found.append(
                f"segment_count is {self.segment_count}, and only {len(self.files)} files are "
                "listed"
            )
        if max(self.build_id, self.documents_build_id) >= 1 << 64:
            found.append("a build_id has more than 64 bits")
        if unknown := [name for name in self.requires if name not in FEATURES]:
            found.append(f"it requires {', '.join(unknown)}, which this build does not know")
        return found

    def layout(self) -> PageLayout:
        """Returns how rows are arranged in pages. Raises `ConfigError` for an impossible layout."""
        try:
            return PageLayout(
                dimension=self.dimension, vector_dtype=self.vector_dtype, page_bytes=self.page_bytes
            )
        except ValueError as error:
            raise ConfigError(
                f"no index can have the layout of this manifest: {error}; rebuild the index"
            ) from error

    def file(self, name: str) -> FileEntry:
        """Returns the entry of a required file. Raises `ConfigError` when it is not listed."""
        entry = self.files.get(name)
        if entry is None:
            raise ConfigError(
                f"the manifest lists no {name}: this is not a whole {self.format} index; rebuild it"
            )
        return entry

    def read(self, index_dir: Path, name: str, size_bytes: int) -> bytes:
        """Returns the content of a table that must have this size. Blocks.

        Raises `CorruptionError`; `ConfigError` as `file`.
        """
        entry, path = self.file(name), index_dir / name
        if entry.size_bytes != size_bytes:
            whole = f"{self.nlist} clusters of dimension {self.dimension} take {size_bytes}"
            raise damage(path, f"is wrong: it has {entry.size_bytes} bytes, and {whole}")
        return read_checked(path, size_bytes=size_bytes, crc32=entry.crc32)


class _Envelope(msgspec.Struct, frozen=True, kw_only=True):
    format: str
    crc32: NonNegative
    manifest: msgspec.Raw


class _FormatOnly(msgspec.Struct, frozen=True):
    format: str


def encode_manifest(manifest: Manifest) -> bytes:
    """Returns the content of the file: readable JSON with a checksum, equal for equal values."""
    return _enclose(manifest.format, msgspec.json.format(msgspec.json.encode(manifest), indent=1))


def _enclose(format_name: str, body: bytes) -> bytes:
    return (
        f'{{"format":"{format_name}","crc32":{zlib.crc32(body)},"manifest":'.encode()
        + body
        + b"}\n"
    )


def write_manifest(index_dir: Path, manifest: Manifest) -> None:
    """Writes the manifest, which makes the index complete. Call it last. Durable."""
    write_atomically(index_dir / MANIFEST_NAME, encode_manifest(manifest))


def read_manifest(index_dir: Path) -> Manifest:
    """Returns the manifest of the index at `index_dir`; does not check other files.

    Raises `ConfigError` where there is no index or one of another format, and `CorruptionError`
    where the manifest is damaged.
    """
    path = index_dir / MANIFEST_NAME
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            content = file.read(MANIFEST_BYTES_MAX + 1)
    except FileNotFoundError:
        raise ConfigError(_absent(index_dir)) from None
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}; check the folder of the index"
        ) from error
    if len(content) > MANIFEST_BYTES_MAX:
        raise damage(path, f"is too large: a manifest has at most {MANIFEST_BYTES_MAX} bytes")
    try:
        return _decoded(path, content)
    except RecursionError:
        raise damage(path, "is damaged: its JSON is nested too deeply", 0) from None


def _decoded(path: Path, content: bytes) -> Manifest:
    try:
        found = msgspec.json.decode(content, type=_FormatOnly).format
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise damage(path, "is damaged: it is not JSON with a format", 0) from None
    if found != FORMAT:
        raise ConfigError(
            f"{path} has format {found[:20]!r}; this build reads {FORMAT}. Rebuild the index: "
            "carpool index build CORPUS --out DIR"
        )
    try:
        envelope = msgspec.json.decode(content, type=_Envelope)
        body = bytes(envelope.manifest)
        # The bytes are checked, not the fields: a later build may have written unknown fields.
        if _enclose(found, body) != content or zlib.crc32(body) != envelope.crc32:
            raise damage(path, "is damaged: its checksum does not match", 0)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise damage(path, f"is damaged: {error}", 0) from None
    try:
        manifest = msgspec.json.decode(body, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} is undamaged, but this build cannot read it: {error}. Use the build that "
            "wrote it, or rebuild the index"
        ) from None
    if problems := manifest.problems():
        raise ConfigError(f"{path}: {'; '.join(problems)}. Rebuild the index.")
    return manifest


def is_newer(version: str, than: str) -> bool:
    """Returns whether the index `version` is newer than another one.

    A version begins with the time of its build. Two versions of one second have an order too, so
    that of two services with different indexes always exactly one has the older one.
    """
    return version > than


def _absent(index_dir: Path) -> str:
    if (index_dir / ".build").is_dir():
        return (
            f"the index at {index_dir} is unfinished: its build, or its save, was interrupted; run "
            "the same command again"
        )
    why = f"the folder has no {MANIFEST_NAME}" if index_dir.is_dir() else "no such folder"
    return (
        f"there is no index at {index_dir} ({why}); build one: carpool index build CORPUS "
        f"--out {index_dir}"
    )

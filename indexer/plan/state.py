"""What a build is of, what it has saved, and what it keeps of an interrupted one. Pure."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from carpool.disk.extents import SEGMENT_BYTES_MAX
from carpool.disk.pages import VectorDtype

STATE_FORMAT = "v6"
"""Another one where a constant of a build has changed: what was saved is then made again."""
SHARD_ROWS = 256
"""Rows between two saves: fewer make many files, more repeat more work after a kill."""


class CorpusIdentity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What decides which passages an index holds, in which order.

    `fields`: the names of `id`, `text` or `title` in the corpus, where they were given.
    """

    size_bytes: int
    sha256: str
    passage_bytes_max: int
    fields: dict[str, str] = {}


class VectorsIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What the bytes of the vectors depend on; `vectors_sha256` is empty if the build embeds."""

    embedding_model: str
    embedding_model_name: str
    vectors_sha256: str = ""
    shard_rows: int = SHARD_ROWS


class ClusteringIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What decides which cluster a row is in; `nlist` 0 stands for the default of the row count."""

    train_bytes_max: int
    nlist: int = 0
    seed: int = 0


class LayoutIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What decides how clusters are stored in files."""

    vector_dtype: VectorDtype
    segment_bytes_max: int = SEGMENT_BYTES_MAX
    code_rows_min: int = 0


class BuildIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """All that the bytes of an index depend on, except the start time of its build."""

    corpus: CorpusIdentity
    vectors: VectorsIdentity
    clustering: ClusteringIdentity
    layout: LayoutIdentity


class LineProblem(msgspec.Struct, frozen=True, kw_only=True):
    """The first of `count` lines that were skipped for one reason; lines are numbered from 1."""

    line: int
    why: str
    count: int = 1


class DocumentsDone(msgspec.Struct, frozen=True, kw_only=True):
    """The corpus is read and its documents are saved.

    `problems`: the first reasons of `problem_count` bad lines. `notes`: what was made of odd lines,
    with the count of documents.
    """

    row_count: int
    problem_count: int
    problems: tuple[LineProblem, ...]
    notes: dict[str, int] = {}


class ClustersDone(msgspec.Struct, frozen=True, kw_only=True):
    """Centroids, and the cluster of every row, are saved: checksums, digest of the vectors."""

    centroids_crc32: int
    rows_crc32: int
    vectors_digest: str


class BuildState(msgspec.Struct, frozen=True, kw_only=True):
    """The saved state of an unfinished build.

    `dimension` is set when the model is loaded or the precomputed vectors are checked,
    `clusters` when those files are saved. Finished segments are found by their files.
    """

    started_us: int
    identity: BuildIdentity
    format: str = STATE_FORMAT
    documents: DocumentsDone | None = None
    dimension: int | None = None
    clusters: ClustersDone | None = None


def plan_shards(row_count: int, shard_rows: int) -> tuple[range, ...]:
    """Returns the rows that are embedded and saved together. They are the same in every run."""
    starts = range(0, row_count, shard_rows)
    return tuple(range(start, min(start + shard_rows, row_count)) for start in starts)


class Resume(NamedTuple):
    """How a build starts: its state, whether saved shards are kept, and the changes in words."""

    state: BuildState
    keeps_shards: bool
    changes: tuple[str, ...]

    @property
    def discards(self) -> bool:
        """Whether work of the earlier build would be discarded."""
        return bool(self.changes) and not self.keeps_shards


def plan_resume(found: BuildState | None, wanted: BuildIdentity, *, now_us: int) -> Resume:
    """Returns what a build of `wanted` keeps of the interrupted build `found`.

    With another corpus: nothing. With another model: the documents. With other clusters: documents
    and vectors. With another layout: all but the segments.
    """
    fresh = BuildState(started_us=now_us, identity=wanted)
    if found is None:
        return Resume(fresh, False, ())
    if found.format != STATE_FORMAT:
        return Resume(
            fresh,
            False,
            (f"the state of the build has format {found.format!r}, not {STATE_FORMAT!r}",),
        )
    if changes := _changes("corpus", found.identity.corpus, wanted.corpus):
        return Resume(fresh, False, changes)
    if changes := _changes("vectors", found.identity.vectors, wanted.vectors):
        return Resume(msgspec.structs.replace(fresh, documents=found.documents), False, changes)
    kept = msgspec.structs.replace(found, identity=wanted)
    if changes := _changes("clusters", found.identity.clustering, wanted.clustering):
        kept = msgspec.structs.replace(kept, clusters=None)
    return Resume(kept, True, changes + _changes("layout", found.identity.layout, wanted.layout))


def _changes(what: str, found: msgspec.Struct, wanted: msgspec.Struct) -> tuple[str, ...]:
    pairs = (
        (name, getattr(found, name), getattr(wanted, name)) for name in found.__struct_fields__
    )
    return tuple(
        f"{what}: {name} was {old!r} and is {new!r}" for name, old, new in pairs if old != new
    )

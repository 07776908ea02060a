"""Decides what an interrupted build keeps, what remains, and how many clusters and probes. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import msgspec

from carpool.disk.pages import VectorDtype

NPROBE_FACTOR = 2.4
STATE_FORMAT = "v1"


class CorpusIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What decides which passages an index holds, in which order."""

    size_bytes: int
    sha256: str
    passage_bytes_max: int
    line_bytes_max: int


class VectorsIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What the bytes of the vectors depend on; `vectors_sha256` is empty if the build embeds."""

    embedding_model: str
    embedding_model_name: str
    vectors_sha256: str
    shard_rows: int
    batch_size: int
    max_tokens: int


class ClusteringIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What decides which cluster a row is in; `nlist` 0 stands for the default of the row count."""

    nlist: int
    seed: int
    train_rows_per_cluster: int
    train_bytes_max: int
    train_iterations: int
    cluster_rows_max_factor: float
    cluster_rows_min_factor: float


class LayoutIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What decides how the clusters lie in files."""

    vector_dtype: VectorDtype
    segment_bytes_max: int


class BuildIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the bytes of an index depend on, less the time that its build began."""

    corpus: CorpusIdentity
    vectors: VectorsIdentity
    clustering: ClusteringIdentity
    layout: LayoutIdentity


class LineProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the corpus that was not taken, numbered from 1, and why."""

    line: int
    why: str


class DocumentsDone(msgspec.Struct, frozen=True, kw_only=True):
    """The corpus is read, its documents are on disk. `problems`: the first of `problem_count`."""

    row_count: int
    problem_count: int
    problems: tuple[LineProblem, ...]


class AssignmentDone(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster of every row is saved: checksum of the file, digest of the assigned vectors."""

    crc32: int
    vectors_digest: str


class BuildState(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of a build that is under way.

    `dimension` is known once the model was loaded, or once all precomputed vectors were looked at.
    `centroids_crc32` and `assignment` are there once those files are saved; finished segments speak
    for themselves.
    """

    format: str
    started_us: int
    identity: BuildIdentity
    documents: DocumentsDone | None = None
    dimension: int | None = None
    centroids_crc32: int | None = None
    assignment: AssignmentDone | None = None


class Resume(NamedTuple):
    """How a build starts: its state, whether saved shards are kept, and what changed, in words."""

    state: BuildState
    keeps_shards: bool
    changes: tuple[str, ...]

    @property
    def discards(self) -> bool:
        """Whether work of the earlier build would be thrown away."""
        return bool(self.changes) and not self.keeps_shards


class Shard(NamedTuple):
    """Rows that are embedded and saved together: [start, stop)."""

    number: int
    start: int
    stop: int


def plan_resume(found: BuildState | None, wanted: BuildIdentity, *, now_us: int) -> Resume:
    """Returns what is kept of the build `found` for one of `wanted`.

    Another corpus keeps nothing, another model the documents, other clusters also the vectors,
    another layout all but segments.
    """
    fresh = BuildState(format=STATE_FORMAT, started_us=now_us, identity=wanted)
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
        kept = msgspec.structs.replace(kept, centroids_crc32=None, assignment=None)
    return Resume(kept, True, changes + _changes("layout", found.identity.layout, wanted.layout))


def _changes(what: str, found: msgspec.Struct, wanted: msgspec.Struct) -> tuple[str, ...]:
    pairs = (
        (name, getattr(found, name), getattr(wanted, name)) for name in found.__struct_fields__
    )
    return tuple(
        f"{what}: {name} was {old!r} and is {new!r}" for name, old, new in pairs if old != new
    )


def plan_shards(row_count: int, shard_rows: int) -> tuple[Shard, ...]:
    """Returns the shards of `row_count` rows. Every run embeds the same batches."""
    starts = range(0, row_count, shard_rows)
    return tuple(
        Shard(number, start, min(start + shard_rows, row_count))
        for number, start in enumerate(starts)
    )


def remaining_shards(shards: Sequence[Shard], present: AbstractSet[int]) -> tuple[Shard, ...]:
    """Returns the shards whose number is not in `present`, in order."""
    return tuple(shard for shard in shards if shard.number not in present)


def default_nlist(row_count: int) -> int:
    """Returns the square root of the row count, rounded to one digit: 100 for 16,000 rows.

    Near it, the work of a query (nlist centroids, and nprobe times rows / nlist vectors) is
    smallest, and a cluster has about nlist rows. One digit keeps the number the same while a corpus
    grows a little.
    """
    root = max(1, math.isqrt(row_count))
    digit = int(10 ** (len(str(root)) - 1))
    return max(1, min(row_count, (root + digit // 2) // digit * digit))


def default_nprobe(nlist: int) -> int:
    """Returns 2.4 times the square root of nlist, at most nlist: 24 of 100 clusters.

    Measured with 539 FEVER claims over 16,152 passages of Wikipedia (all-MiniLM-L6-v2, three
    seeds), this keeps an evidence page in the first five within 1 point of exact search at nlist
    100, 200 and 400. Fewer, larger clusters need a larger share of them, which the square root
    follows.
    """
    return max(1, min(nlist, round(NPROBE_FACTOR * math.sqrt(nlist))))

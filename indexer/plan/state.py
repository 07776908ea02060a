"""The values that say what a build is of, and what it has saved. Pure."""

from __future__ import annotations

import msgspec

from carpool.disk.pages import VectorDtype


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
    vectors_sha256: str
    shard_rows: int


class ClusteringIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What decides which cluster a row is in; `nlist` 0 stands for the default of the row count."""

    nlist: int
    seed: int
    train_bytes_max: int


class LayoutIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What decides how clusters are stored in files."""

    vector_dtype: VectorDtype
    segment_bytes_max: int
    code_rows_min: int


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


class AssignmentDone(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster of every row is saved: checksum of the file, digest of the assigned vectors."""

    crc32: int
    vectors_digest: str


class BuildState(msgspec.Struct, frozen=True, kw_only=True):
    """The saved state of an unfinished build.

    `dimension` is set when the model is loaded or the precomputed vectors are checked,
    `centroids_crc32` and `assignment` when those files are saved. Finished segments are found by
    their files.
    """

    format: str
    started_us: int
    identity: BuildIdentity
    documents: DocumentsDone | None = None
    dimension: int | None = None
    centroids_crc32: int | None = None
    assignment: AssignmentDone | None = None

"""What bounds a build: the section `[indexer]` of the settings."""

from __future__ import annotations

from typing import Annotated

import msgspec

from carpool.disk.pages import VectorDtype
from carpool.embedding import EmbeddingSettings
from carpool.settings import Settings


class IndexerSettings(Settings, frozen=True, kw_only=True):
    """Limits of `carpool index build`; those that change the bytes are saved with the build."""

    passage_bytes_max: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=8 << 20,
            description="Bytes of title and text of one passage. Too low refuses passages; too "
            "high lets a retrieval with many "
            "long passages outgrow the record that the brokers take (4 MiB).",
        ),
    ] = 32 << 10
    line_bytes_max: Annotated[
        int,
        msgspec.Meta(
            ge=64,
            le=256 << 20,
            description="Bytes of one line of the corpus, metadata included. Too low refuses "
            "lines; too high lets one line take that much memory.",
        ),
    ] = 4 << 20
    problems_listed: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=100_000,
            description="Bad lines that are listed; all are counted. Too low hides what is wrong, "
            "too high floods the screen.",
        ),
    ] = 20
    shard_rows: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=1 << 20,
            description="Passages embedded between two saves. Too low makes many small files, too "
            "high loses more work when the build is killed.",
        ),
    ] = 256
    train_rows_per_cluster: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=100_000,
            description="Rows sampled to train each centroid. Too low gives poor clusters; too "
            "high takes time, and memory: "
            "nlist * this * dimension * 4 bytes, or memory_bytes where that is less.",
        ),
    ] = 256
    train_iterations: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=1000,
            description="Rounds of k-means. Too low gives uneven clusters, too high only takes "
            "time.",
        ),
    ] = 20
    cluster_rows_max_factor: Annotated[
        float,
        msgspec.Meta(
            ge=1.2,
            le=1e9,
            description="Times the mean: clusters with more rows are far too large and split, for "
            "the places of the smallest; 1e9 leaves them. Too low tears apart what is alike, which "
            "costs recall at few probes; too high leaves clusters that take much of the searcher's "
            "memory at once and make its slowest queries.",
        ),
    ] = 2.5
    cluster_rows_min_factor: Annotated[
        float,
        msgspec.Meta(
            ge=0,
            le=0.8,
            description="Times the mean: clusters with fewer rows are far too small and dissolved, "
            "their rows go to the nearest others; 0 leaves them. Too low spends probes on next to "
            "nothing, too high tears apart larger ones for their places.",
        ),
    ] = 0.25
    vector_dtype: Annotated[
        VectorDtype,
        msgspec.Meta(
            description='Numbers on disk: "float32" is exact; "float16" halves the bytes that are '
            "read and kept, and moves a score by up to 0.0005, so that near ties may change places."
        ),
    ] = "float32"
    memory_bytes: Annotated[
        int,
        msgspec.Meta(
            ge=4096,
            le=1 << 50,
            description="Vectors in memory at once, to train with or to be written; before that, "
            "ids that are compared. The process takes about 300 MB beside it, and 20 bytes a "
            "passage. Too low reads the vectors more often, or cannot hold a cluster (an error "
            "says so); too high outgrows the machine.",
        ),
    ] = 1 << 30
    segment_bytes_max: Annotated[
        int,
        msgspec.Meta(
            ge=4096,
            le=1 << 50,
            description="Bytes of a segment, a file of whole clusters that is saved when it is "
            "complete. Too low makes "
            "many files, too high repeats more work when the build is killed.",
        ),
    ] = 256 << 20
    threads: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=1024,
            description="Threads FAISS trains and assigns with; 0 leaves it to FAISS (all cores). "
            "Too low is slow, too high takes the cores from what runs beside it.",
        ),
    ] = 0
    profile_reads: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=1000,
            description="Times each cluster is read past the page cache, at the end of a build and "
            "by `carpool index profile`, to store its read latency (the median); 0 stores none. "
            "Too low is noisy, too high takes time.",
        ),
    ] = 3


class IndexerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The sections that a build reads."""

    embedding: EmbeddingSettings = EmbeddingSettings()
    indexer: IndexerSettings = IndexerSettings()

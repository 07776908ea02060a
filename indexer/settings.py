"""What bounds a build: the section `[indexer]` of the settings."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from carpool.embedding import EmbeddingSettings
from carpool.settings import Settings


class IndexerSettings(Settings, frozen=True, kw_only=True):
    """What the indexer and `carpool index build` accept; what changes the bytes is saved."""

    passage_bytes_max: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=8 << 20,
            description="Bytes of title and text of one passage. Too low refuses passages; too "
            "high lets a retrieval with many long passages exceed the largest record (4 MiB).",
        ),
    ] = 32 << 10
    vector_dtype: Annotated[
        Literal["float32", "float16"],
        msgspec.Meta(
            description='Type of the numbers on disk: "float32" is exact; "float16" halves the '
            "bytes that are read and kept, and changes a score by up to 0.0005, so near ties may "
            "swap."
        ),
    ] = "float32"
    memory_bytes: Annotated[
        int,
        msgspec.Meta(
            ge=4096,
            le=1 << 50,
            description="Memory for vectors while clusters are trained and written. The process "
            "takes about 300 MB more, and 20 bytes a passage (100 while the corpus is read). Too "
            "low reads the vectors more often, or cannot contain a cluster (an error says so); too "
            "high exceeds the memory of the machine.",
        ),
    ] = 1 << 30
    code_rows_min: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=1 << 40,
            description="Least number of passages for which an index gets codes; 1: each does. "
            "Codes take an eighth of the bytes of the vectors; the searcher keeps them in memory "
            "and scans them instead of the vectors. Too high: every query reads whole clusters.",
        ),
    ] = 1
    threads: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=1024,
            description="Threads of FAISS for training and assignment; 0: as FAISS decides (all "
            "cores). Too low is slow, too high takes the cores from other processes.",
        ),
    ] = 0


class IndexerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The sections that a build reads."""

    embedding: EmbeddingSettings = EmbeddingSettings()
    indexer: IndexerSettings = IndexerSettings()

"""The section `[searcher]` of the settings."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import msgspec

from carpool.settings import Settings
from schemas.query import TOP_K_MAX, SearchMode

MIB = 1 << 20


class SearcherSettings(Settings, frozen=True, kw_only=True):
    """What the searcher may use, and how it reads."""

    budget_bytes: Annotated[
        int,
        msgspec.Meta(
            ge=4096,
            description="Bytes of codes and clusters in memory, and of reads of rows, clusters and "
            "passages. The searcher never exceeds it. An index of 1,000,000 x 384 has 200 MB of "
            "codes. Too low: every query reads from disk; below 1 MiB and the largest cluster, the "
            "searcher refuses to start. Too high: the machine runs out of memory. The process "
            "needs about 100 MB more.",
        ),
    ] = 256 * MIB
    search_mode: Annotated[
        SearchMode,
        msgspec.Meta(
            description="What is promised of a query that names no search_mode, among the "
            "clusters that it probes. default: of 1,000 ids at least 998 are those of an exact "
            "search; codes in memory are scanned and a few rows are read. exact: all are; whole "
            "clusters are read. An index without codes is always searched exactly."
        ),
    ] = "default"
    fresh_bytes: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            description="Bytes of documents in memory that came after the index was built or "
            "saved, in addition to budget_bytes: 256 MiB are about 160,000 passages of 384 "
            "dimensions. 0: no documents are read, and the index is all there is. Too low: new "
            "documents are not found until a base is saved. Too high: the machine runs out of "
            "memory.",
        ),
    ] = 256 * MIB
    scoring_threads: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=1024,
            description="Threads that scan codes, and score clusters in exact searches; 0: one for "
            "each core. Too low: cores idle. Too high: the threads compete for cores.",
        ),
    ] = 0
    read_timeout_ms: Annotated[
        int,
        msgspec.Meta(
            ge=10,
            le=3_600_000,
            description="Milliseconds after which a read in the kernel is given up and its cluster "
            "is skipped. Too low: with a slow disk, results miss passages. Too high: queries wait "
            "for a disk that hangs.",
        ),
    ] = 5_000
    direct_io: Annotated[
        Literal["require", "auto"],
        msgspec.Meta(
            description="O_DIRECT. require: refuse to start on a file system without it, or on "
            "tmpfs, where the index would use memory outside the budget. auto: use buffered reads "
            "there, and log a warning."
        ),
    ] = "require"
    top_k_default: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=TOP_K_MAX,
            description="Passages that are found for a query that does not name a number. Too low: "
            "answers lack context. Too high: larger records; a prompt has at most "
            "generator.passages_max of them.",
        ),
    ] = 5
    drafts_after_ms: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=3_600_000,
            description="An exact search that should take this many milliseconds more reads its "
            "nearest clusters first, and sends drafts to rag.retrievals.draft.v1; from drafts a "
            "generator warms its LLM server's prefix cache. 0: no drafts, the default, because "
            "queries share fewer reads in this order. Warming pays from about 300. Too low: drafts "
            "are of no use; too high: no search sends drafts. Searches with codes take "
            "milliseconds and send none.",
        ),
    ] = 0
    shard: Annotated[
        Literal["gpu", "ram"],
        msgspec.Meta(
            description="Where the hot shard is, if shard_bytes is set. gpu: on the first GPU that "
            "PyTorch sees. ram: in memory, part of budget_bytes, scanned by the CPUs: for trials "
            "without a GPU, not for speed.",
        ),
    ] = "gpu"
    shard_bytes: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            description="Bytes of the hot shard: the clusters that most queries probe, scanned "
            "there instead of as codes; 0: none. It needs an index with codes. Too low: few "
            "queries hit it. Too high: the LLM server lacks memory for its KV cache.",
        ),
    ] = 0

    @property
    def threads(self) -> int:
        """Threads that scan and score."""
        return self.scoring_threads or len(os.sched_getaffinity(0))

    @property
    def shard_ram_bytes(self) -> int:
        """Bytes of `budget_bytes` that the hot shard takes."""
        return self.shard_bytes if self.shard == "ram" else 0

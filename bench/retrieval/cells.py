"""The results of a run: cells (contestant, window size, seed), rates of the disk, and oracles."""

from __future__ import annotations

import msgspec

from bench.core.agreement import Agreement
from bench.micro.disk import DiskRate
from bench.retrieval.cgroup import GroupCounters
from bench.retrieval.measure import ContestantFigures
from bench.retrieval.oracles import OracleBytes
from bench.retrieval.processes import Status

SHARE_MAX = 0.02
SLACK_BYTES = 16 << 20
"""Pages of interpreter and libraries (FAISS has 40 MB): the kernel counts them, a contestant does
not.
"""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One contestant in one process.

    `agreement`: of its ids with the reference's, for contestants that are exact. `recall_at_probes`
    and `recall`: the share of the best rows of the probed clusters, and of all rows, that it found.
    `figures` is None where `status` is not `ok`.
    """

    seed: int
    window: int
    contestant: str
    status: Status
    error: str = ""
    is_bug: bool = False
    duration_s: float = 0.0
    page_cache_dropped: str = ""
    limit_bytes: int | None = None
    cache_bytes: int | None = None
    group: GroupCounters | None = None
    figures: ContestantFigures | None = None
    agreement: Agreement | None = None
    recall_at_probes: float | None = None
    recall: float | None = None

    @property
    def bytes_agree(self) -> bool:
        """Whether the kernel's count of bytes agrees with every other count.

        These are the contestant's own, the cgroup's, and the disk's, which counts all processes and
        must not be less.
        """
        if self.figures is None:
            return True
        usage = self.figures.loop
        kernel = usage.kernel_read_bytes
        pairs = [(usage.own.bytes_read, kernel)]
        if self.group is not None:
            pairs.append((self.group.read_bytes, self.figures.life_read_bytes))
        if usage.disk_read_bytes is not None:
            pairs.append((min(usage.disk_read_bytes, kernel), kernel))
        return all(counted is None or agrees(counted, other) for counted, other in pairs)


class DiskBlock(msgspec.Struct, frozen=True, kw_only=True):
    """What the disk reached before, amid or after a block of cells, by depth."""

    seed: int
    window: int
    rates: tuple[DiskRate, ...]


class OracleCell(msgspec.Struct, frozen=True, kw_only=True):
    """What an oracle reads in a block."""

    seed: int
    window: int
    name: str
    queries: int
    found: OracleBytes


class SearchCells(msgspec.Struct, frozen=True, kw_only=True):
    """All results of a run."""

    cells: list[Cell]
    disk: list[DiskBlock]
    oracles: list[OracleCell]


def agrees(one: int, other: int) -> bool:
    """Whether two counts of bytes are within 2 % or 16 MiB of each other. Pure."""
    apart = abs(one - other)
    return apart <= max(SLACK_BYTES, SHARE_MAX * max(one, other))

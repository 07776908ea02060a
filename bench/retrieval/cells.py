"""What a run leaves, line by line: cells (contestant, window size, seed), disk figures and oracles,
each written at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from bench.core.agreement import Agreement
from bench.core.machine import Revision
from bench.micro.disk import DiskFigures, DiskRate
from bench.retrieval.cgroup import MemoryHeld
from bench.retrieval.measure import Measured
from bench.retrieval.oracles import OracleBytes
from bench.retrieval.statistics import differ_by_share
from carpool.errors import ConfigError

CELLS_NAME = "cells.jsonl"
SHARE_MAX = 0.02
SLACK_BYTES = 4 << 20
"""The interpreter's and the libraries' own pages, which the kernel counts and a contestant does
not, may come again from disk.
"""

Status = Literal["ok", "out of memory", "timed out", "failed"]


class Cell(msgspec.Struct, frozen=True, kw_only=True, tag="cell"):
    """What came of one contestant in one process. `settings_id`: of everything that must be equal
    to go on with a run.

    `limit_bytes`: of the process; `cache_bytes`: of the clusters in its memory, where those are
    what is limited. `agreement`: ids against the reference, for contestants that claim to be exact.
    `revision`: of the source when it began.
    """

    settings_id: str
    seed: int
    window: int
    contestant: str
    status: Status
    error: str = ""
    is_bug: bool = False
    started: str = ""
    revision: Revision | None = None
    duration_s: float = 0.0
    page_cache_dropped: str = ""
    limit_bytes: int | None = None
    cache_bytes: int | None = None
    held: MemoryHeld | None = None
    measured: Measured | None = None
    agreement: Agreement | None = None

    @property
    def key(self) -> tuple[int, int, str]:
        """What tells cells of a run apart."""
        return self.seed, self.window, self.contestant

    @property
    def bytes_agree(self) -> bool:
        """Whether the kernel's count for the process agrees with the contestant's own, if there is
        one, with the cgroup's, where the kernel keeps one, and with the disk's, which counts all
        processes and so must not be less.
        """
        if self.measured is None:
            return True
        usage = self.measured.closed.usage
        pairs = [(usage.own.bytes_read, usage.kernel_read_bytes)]
        if self.held is not None:
            pairs.append((self.held.read_bytes, self.measured.life_read_bytes))
        if usage.disk_read_bytes is not None:
            pairs.append(
                (min(usage.disk_read_bytes, usage.kernel_read_bytes), usage.kernel_read_bytes)
            )
        return all(said is None or agrees(said, counted) for said, counted in pairs)


class DiskBlock(msgspec.Struct, frozen=True, kw_only=True, tag="disk"):
    """What the disk reached before, amid or after a block of cells. `figures`: by reads of whole
    clusters; `slices`: by reads of our slices, where those are others; `spread`: by the smaller of
    these into as much memory as a cache has. Each is of moments; `sustained`, `spread_sustained`:
    what the best of `figures` and `slices`, and of `spread`, reach for longer, measured again.
    """

    settings_id: str
    seed: int
    window: int
    figures: DiskFigures
    slices: DiskFigures | None = None
    spread: DiskFigures | None = None
    sustained: DiskRate | None = None
    spread_sustained: DiskRate | None = None

    def bytes_per_s(self, *, is_spread: bool) -> dict[tuple[str, int], float]:
        """Returns the rate of each size and depth: into a buffer for each read under way or,
        `is_spread`, into as much memory as a cache has.
        """
        sizes = (
            {"spread": self.spread}
            if is_spread
            else {"clusters": self.figures, "slices": self.slices}
        )
        return {
            (size, rate.depth): rate.bytes_per_s
            for size, found in sizes.items()
            if found is not None
            for rate in found.rates
        }


class OracleCell(msgspec.Struct, frozen=True, kw_only=True, tag="oracle"):
    """What an oracle reads in a block."""

    settings_id: str
    seed: int
    window: int
    name: str
    queries: int
    found: OracleBytes


Line = Cell | DiskBlock | OracleCell


def agrees(said: int, counted: int) -> bool:
    """Returns whether two counts of bytes are within 2 % or 4 MiB of each other."""
    return differ_by_share(said, counted) <= SHARE_MAX or abs(said - counted) <= SLACK_BYTES


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises `ConfigError` where what is done within cannot write `path`: no room, a file in the
    way, no permission.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"cannot write {path} ({error.strerror or error}): make room or give another folder; "
            "--resume goes on with the cells that are done"
        ) from error


class CellFile:
    """The lines of a run. Each is on disk when `append` returns, so that a run that is cut loses
    only what it was at.
    """

    def __init__(self, path: Path) -> None:
        """`path` need not exist; its folder must."""
        self._path = path

    def read(self, settings_id: str) -> list[Line]:
        """Returns the lines with this `settings_id`, the last one where a cell is there twice;
        drops a last line that was cut.

        Raises `ConfigError` for another line that cannot be read.
        """
        if not self._path.exists():
            return []
        decoder = msgspec.json.Decoder(Line)
        content = self._path.read_bytes().split(b"\n")
        found: list[Line] = []
        for number, line in enumerate(content, start=1):
            if not line:
                continue
            try:
                decoded: Line = decoder.decode(line)
            except msgspec.MsgspecError as error:
                if number == len(content):
                    continue  # cut off while it was written: nothing follows it
                raise ConfigError(f"{self._path}:{number}: {error}; give another --out") from error
            if decoded.settings_id == settings_id:
                found.append(decoded)
        return _last_of_each(found)

    def append(self, line: Line) -> None:
        """Writes a line and waits until it is on disk. Raises `ConfigError` where it cannot."""
        with writing(self._path):
            self._drop_cut_line()
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(line) + b"\n")
                file.flush()
                os.fsync(file.fileno())

    def _drop_cut_line(self) -> None:
        content = self._path.read_bytes() if self._path.exists() else b""
        whole_bytes = content.rfind(b"\n") + 1
        if whole_bytes < len(content):
            os.truncate(self._path, whole_bytes)


def _last_of_each(lines: Iterable[Line]) -> list[Line]:
    cells: dict[tuple[int, int, str], Cell] = {}
    oracles: dict[tuple[int, int, str], OracleCell] = {}
    disks: list[Line] = []
    for line in lines:
        if isinstance(line, Cell):
            cells[line.key] = line
        elif isinstance(line, OracleCell):
            oracles[line.seed, line.window, line.name] = line
        else:
            disks.append(line)
    return [*cells.values(), *oracles.values(), *disks]

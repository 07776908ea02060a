"""The process of one contestant: `python -m bench.search.child REQUEST.json`, in its cgroup.

Opens the contestant, then asks in a closed loop from a cold start.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np

from bench.core.spread import Spread, spread
from bench.search.contestants.contestant import (
    WINDOWS_AHEAD,
    AskedWindow,
    Contestant,
    ContestantError,
    Int64,
    SearchData,
)
from bench.search.contestants.registry import ENTRIES
from carpool.errors import ConfigError

FIGURES_NAME, IDS_NAME = "figures.json", "ids.npy"
OUT_OF_MEMORY = 3
"""The exit status where there is too little memory to begin with."""
ARRAYS = ("queries", "probes", "earlier", "earlier_probes")


class ChildRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A contestant to measure. `arrays`: the folder with those of a `SearchData`, by their names.

    `window`: queries that are asked at once.
    """

    contestant: str
    window: int
    memory_bytes: int | None
    index_dir: str
    prepared_dir: str
    arrays: str

    def load(self) -> SearchData:
        """Returns the data. Of earlier questions only what is used is read."""

        def array(name: str) -> Any:
            path, is_mapped = Path(self.arrays, f"{name}.npy"), name.startswith("earlier")
            return np.load(path, mmap_mode="r" if is_mapped else None, allow_pickle=False)

        return SearchData(
            index_dir=Path(self.index_dir),
            prepared_dir=Path(self.prepared_dir),
            memory_bytes=self.memory_bytes,
            **{name: array(name) for name in ARRAYS},
        )


class ContestantFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured in a contestant's process, of the closed loop.

    Latencies are from the arrival of the window to the answer. `read_bytes`: by the kernel.
    """

    queries: int
    latency_ms: Spread
    duration_us: int
    read_bytes: int

    @property
    def queries_per_s(self) -> float:
        """Queries answered a second, from the first arrival to the last answer."""
        return self.queries / max(self.duration_us, 1) * 1e6


def windows_of(data: SearchData, size: int) -> Iterator[AskedWindow]:
    """Yields the queries of `data` in windows of `size`, the last one shorter if need be."""
    starts = range(0, len(data.queries), size)
    for start in starts:
        ahead = [at for at in starts if start < at <= start + WINDOWS_AHEAD * size]
        yield AskedWindow(
            start,
            data.queries[start : start + size],
            data.probes[start : start + size],
            tuple(data.probes[at : at + size] for at in ahead),
        )


def measure(
    contestant: Contestant, data: SearchData, window_size: int
) -> tuple[ContestantFigures, Int64]:
    """Returns what was measured, and the ids that were found: (n, top_k) int64, -1 where none.

    Raises `ContestantError` where a query has not exactly one answer of at most top_k ids, and what
    the contestant raises.
    """
    contestant.open(data)
    opened_bytes, began_us = process_read_bytes(), _now_us()
    ids = np.full((len(data.queries), data.top_k), -1, np.int64)
    latencies_us: list[int] = []
    for window in windows_of(data, window_size):
        asked_us = _now_us()
        waiting = set(range(window.first, window.first + len(window.vectors)))
        for number, rows in contestant.search(window):
            latencies_us.append(_now_us() - asked_us)
            if number not in waiting or len(rows) > data.top_k:
                raise ContestantError(f"query {number} was not asked, or answered, or over top_k")
            waiting.remove(number)
            ids[number, : len(rows)] = rows
        if waiting:
            raise ContestantError(f"{len(waiting)} queries of a window were not answered")
    figures = ContestantFigures(
        queries=len(data.queries),
        latency_ms=cast(Spread, spread(us / 1_000 for us in latencies_us)),
        duration_us=_now_us() - began_us,
        read_bytes=process_read_bytes() - opened_bytes,
    )
    return figures, ids


def process_read_bytes() -> int:
    """Returns the bytes that this process read from disk: page faults and O_DIRECT included.

    Raises `ConfigError` where the kernel does not count them.
    """
    try:
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    except OSError as error:
        raise ConfigError(f"run on Linux with task I/O accounting: {error}") from error
    return int(dict(line.split(": ", 1) for line in lines)["read_bytes"])


def _now_us() -> int:
    return time.monotonic_ns() // 1_000


def main(request_path: Path) -> None:
    """Measures, and writes figures and ids beside the request; an error goes to standard error."""
    folder = request_path.parent
    request = msgspec.json.decode(request_path.read_bytes(), type=ChildRequest)
    contestant = ENTRIES[request.contestant].load().make(request.contestant)
    try:
        figures, ids = measure(contestant, request.load(), request.window)
    except MemoryError:
        traceback.print_exc(limit=0)
        sys.exit(OUT_OF_MEMORY)
    finally:
        contestant.close()
    np.save(folder / IDS_NAME, ids)
    (folder / FIGURES_NAME).write_bytes(msgspec.json.encode(figures))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""The process of one contestant, in its cgroup: `python -m bench.search.child REQUEST PEAK`.

It builds the contestant, and searches for the settings that reach the wanted recalls; or it asks at
one setting in a closed loop, from a cold start.
"""

from __future__ import annotations

import shutil
import sys
import time
import traceback
from bisect import bisect_left
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import cast

import msgspec
import numpy as np
from msgspec import structs

from bench.core.spread import Spread, spread
from bench.data.exact import BestRows
from bench.search.cgroup import Peak
from bench.search.contestants.contestant import Contestant, SearchData
from bench.search.contestants.registry import ENTRIES
from carpool.arrays import Float32, Int64

FIGURES_NAME, IDS_NAME, BUILD_NAME = "figures.json", "ids.npy", "build_s"
OUT_OF_MEMORY = 3
"""The exit status where there is too little memory to begin with."""
ARRAYS = ("tuning", "tuning_rows", "tuning_scores", "queries")
TUNING_WINDOW = 100


class ChildRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A contestant to build and tune for `targets`, or where there is a `setting` to measure.

    `arrays`: the folder of the questions. `window`: queries that are asked at once; `clients`: who
    ask at the same time.
    """

    contestant: str = ""
    collection: str = ""
    prepared: str = ""
    arrays: str = ""
    index: str | None = None
    memory_bytes: int | None = None
    targets: tuple[float, ...] = ()
    setting: int | None = None
    window: int = 1
    clients: int = 1

    def array(self, name: str) -> Float32:
        """Returns one of `ARRAYS`."""
        found: Float32 = np.load(Path(self.arrays, f"{name}.npy"), allow_pickle=False)
        return found

    def load(self) -> SearchData:
        return SearchData(
            corpus=Path(self.collection, "corpus.jsonl"),
            vectors=Path(self.collection, "vectors.npy"),
            prepared=Path(self.prepared),
            tuning=self.array("tuning"),
            index=Path(self.index) if self.index else None,
            memory_bytes=self.memory_bytes,
        )


class TunedFigures(msgspec.Struct, frozen=True, kw_only=True, tag="tuned"):
    """The lowest setting that reached each of the recalls on the tuning questions.

    None: no setting did, and `most` is what the highest one reached. `build_s`: None where the
    index was given.
    """

    build_s: float | None
    settings: tuple[int | None, ...]
    most: float


class ContestantFigures(msgspec.Struct, frozen=True, kw_only=True, tag="measured"):
    """What was measured in a contestant's process, of the closed loop.

    Latencies are from asking a window to its answer. `read_bytes`: by the kernel; `cpu_us`: of the
    process; `peak_bytes`: of its memory while it was asked, None where nothing counts it.
    """

    queries: int
    latency_ms: Spread
    duration_us: int
    cpu_us: int
    read_bytes: int
    peak_bytes: int | None = None

    @property
    def queries_per_s(self) -> float:
        """Queries answered a second, from the first arrival to the last answer."""
        return self.queries / max(self.duration_us, 1) * 1e6


def tune(
    contestant: Contestant, queries: Float32, best: BestRows, recalls: Sequence[float]
) -> tuple[tuple[int | None, ...], float]:
    """Returns the lowest setting that reaches each recall, and the recall of the highest one."""
    settings = contestant.settings
    starts = range(0, len(queries), TUNING_WINDOW)

    @cache
    def recall(setting: int) -> float:
        windows = [queries[start : start + TUNING_WINDOW] for start in starts]
        return best.recall(np.concatenate([contestant.search(each, setting) for each in windows]))

    places = [bisect_left(settings, wanted, key=recall) for wanted in recalls]
    found = tuple(settings[at] if at < len(settings) else None for at in places)
    return found, recall(settings[-1])


def measure(
    contestant: Contestant, queries: Float32, request: ChildRequest
) -> tuple[ContestantFigures, Int64]:
    """Returns what was measured, and the ids that were found: (n, TOP_K) int64, -1 where none."""
    setting = cast(int, request.setting)
    starts = range(0, len(queries), request.window)

    def ask(start: int) -> tuple[float, Int64]:
        asked_s = time.monotonic()
        found = contestant.search(queries[start : start + request.window], setting)
        return 1e3 * (time.monotonic() - asked_s), found

    with ThreadPoolExecutor(request.clients) as pool:
        read_bytes, cpu_s, began_s = process_read_bytes(), time.process_time(), time.monotonic()
        answers = [*pool.map(ask, starts)] if request.clients > 1 else [*map(ask, starts)]
        took_s = time.monotonic() - began_s
    figures = ContestantFigures(
        queries=len(queries),
        latency_ms=cast(Spread, spread(latency_ms for latency_ms, _ in answers)),
        duration_us=int(1e6 * took_s),
        cpu_us=int((time.process_time() - cpu_s) * 1e6),
        read_bytes=process_read_bytes() - read_bytes,
    )
    return figures, np.concatenate([found for _, found in answers])


def process_read_bytes() -> int:
    """Returns the bytes that this process read from disk: page faults, O_DIRECT included."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return int(dict(line.split(": ", 1) for line in lines)["read_bytes"])


def _build_and_tune(contestant: Contestant, request: ChildRequest) -> TunedFigures:
    data = request.load()
    if data.index is None and not data.prepared.exists():
        partial = data.prepared.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        began_s = time.monotonic()
        contestant.build(replace(data, prepared=partial))
        (partial / BUILD_NAME).write_text(str(time.monotonic() - began_s))
        partial.rename(data.prepared)
    build_s = None if data.index else float((data.prepared / BUILD_NAME).read_text())
    contestant.open(data)
    best = BestRows(request.array("tuning_rows").astype(np.int64), request.array("tuning_scores"))
    settings, most = tune(contestant, data.tuning, best, request.targets)
    return TunedFigures(build_s=build_s, settings=settings, most=most)


def main(request_path: Path, peak_path: Path | None = None) -> None:
    """Measures, and writes figures and ids next to the request; an error goes to standard error.

    `peak_path`: of the group that counts the memory of this process.
    """
    folder = request_path.parent
    request = msgspec.json.decode(request_path.read_bytes(), type=ChildRequest)
    contestant = ENTRIES[request.contestant].make()
    figures: TunedFigures | ContestantFigures
    try:
        if request.setting is None:
            figures = _build_and_tune(contestant, request)
        else:
            contestant.open(request.load())
            peak = Peak(peak_path) if peak_path else None
            figures, ids = measure(contestant, request.array("queries"), request)
            figures = structs.replace(figures, peak_bytes=peak.read_bytes() if peak else None)
            np.save(folder / IDS_NAME, ids)
    except MemoryError:
        traceback.print_exc(limit=0)
        sys.exit(OUT_OF_MEMORY)
    finally:
        contestant.close()
    (folder / FIGURES_NAME).write_bytes(msgspec.json.encode(figures))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

"""A searcher process that searches random queries and reports its anonymous memory: `python -m ...
INDEX_DIR BUDGET_BYTES`.

Anonymous memory (RssAnon) is what the process holds without mapped files: interpreter, heap,
stacks, and the cache.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from pathlib import Path

import numpy as np

from carpool.clock import SystemClock
from carpool.disk.manifest import read_manifest
from carpool.disk.settings import IndexSettings
from carpool.loop.stage import Done
from carpool.telemetry.metrics import Metrics
from searcher.service import build_stage
from searcher.settings import SearcherSettings
from tests.searcher.helpers import ListSink, Running, group_of, make_unit

GROUPS = 40
QUERIES = 5
PROBES = 6


def anonymous_bytes() -> int:
    """RssAnon of this process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024


class CountingSink(ListSink):
    """Keeps no records: their memory is not the searcher's."""

    def done(self, done: Done) -> bool:
        return super().done(Done(parts=done.parts, outputs=()))


class Peak(threading.Thread):
    """Looks at the memory every millisecond."""

    bytes = 0

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.start()

    def run(self) -> None:
        while True:
            self.bytes = max(self.bytes, anonymous_bytes())
            time.sleep(0.001)


def main(index_dir: str, budget_bytes: int) -> None:
    """Searches, and prints one line of JSON."""
    manifest, rng = read_manifest(Path(index_dir)), random.Random(5)
    vector = np.ones(manifest.dimension, dtype=np.float32)
    peak, sink, metrics = Peak(), CountingSink(), Metrics()
    settings = SearcherSettings(budget_bytes=budget_bytes)
    stage = build_stage(settings, IndexSettings(dir=index_dir), metrics, SystemClock())

    def probes() -> tuple[int, ...]:
        return tuple(rng.sample(range(manifest.nlist), min(PROBES, manifest.nlist)))

    with Running(stage, sink, metrics) as here:
        here.wait_ready()
        for number in range(GROUPS):
            searches = [(vector, probes()) for _ in range(QUERIES)]
            group = group_of(manifest, searches, next_clusters=probes(), sequence=number)
            stage.offer(make_unit(number, group), 0)
            sink.wait_done(QUERIES * (number + 1))
    read = sum(here.count("bytes_read_total", purpose=one) for one in ("demand", "prefetch"))
    heavy = sorted({"faiss", "torch", "sklearn", "scipy", "transformers"} & sys.modules.keys())
    print(json.dumps({"peak_bytes": peak.bytes, "read_bytes": read, "heavy": heavy}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

"""A searcher process that searches random queries and reports its anonymous memory: `python -m ...
INDEX_DIR BUDGET_BYTES`.

Anonymous memory (RssAnon) is what the process holds beside mapped files: interpreter, heap, stacks,
and the cache.
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
from tests.searcher.helpers import ListSink, group_of, make_unit

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
    manifest = read_manifest(Path(index_dir))
    peak, sink, metrics = Peak(), CountingSink(), Metrics()
    settings = SearcherSettings(budget_bytes=budget_bytes)
    stage = build_stage(settings, IndexSettings(dir=index_dir), metrics, SystemClock())
    stage.start(sink)
    while stage.not_ready():
        time.sleep(0.01)
    rng = random.Random(5)
    vector = np.ones(manifest.dimension, dtype=np.float32)
    count = 0
    for number in range(GROUPS):
        probes = [
            tuple(rng.sample(range(manifest.nlist), min(PROBES, manifest.nlist)))
            for _ in range(QUERIES)
        ]
        ahead = tuple(rng.sample(range(manifest.nlist), min(PROBES, manifest.nlist)))
        stage.offer(
            make_unit(
                number,
                group_of(
                    manifest, [(vector, p) for p in probes], next_clusters=ahead, sequence=number
                ),
            ),
            0,
        )
        count += QUERIES
        sink.wait_done(count)
    stage.check_integrity()
    read = sum(
        metrics.registry.get_sample_value("carpool_bytes_read_total", {"purpose": purpose}) or 0
        for purpose in ("demand", "prefetch")
    )
    heavy = sorted({"faiss", "torch", "sklearn", "scipy", "transformers"} & sys.modules.keys())
    print(json.dumps({"peak_bytes": peak.bytes, "read_bytes": read, "heavy": heavy}))
    stage.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

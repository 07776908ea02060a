"""The process of one contestant: `python -m bench.retrieval.child REQUEST.json`, in its cgroup.

Reads a request, measures or prepares, and writes an outcome beside the request.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from bench.baselines.contestant import ContestantError, Float32, Int64, Limits, SearchData
from bench.baselines.faiss_ivf import FaissIvf
from bench.baselines.registry import ENTRIES
from bench.data.clusters import open_clusters, read_clusters
from bench.retrieval.exactness import MARGIN
from bench.retrieval.measure import ContestantFigures, measure
from carpool.errors import CarpoolError

QUERIES_NAME = "queries.npy"
PROBES_NAME = "probes.npy"
EARLIER_NAME = "earlier.npy"
EARLIER_PROBES_NAME = "earlier-probes.npy"
OUTCOME_NAME = "outcome.json"
IDS_NAME = "ids.npy"
PROGRESS_NAME = "progress"
PROGRESS_EVERY_S = 0.5
PR_SET_PDEATHSIG = 1
REFERENCE_BATCH = 256


class SearchFiles(msgspec.Struct, frozen=True, kw_only=True):
    """A `SearchData` on disk: `folder` has queries and probes, and those of earlier questions."""

    index_dir: str
    prepared_dir: str
    folder: str
    top_k: int

    def load(self) -> SearchData:
        """Returns the data with queries and probes read."""
        folder = Path(self.folder)
        queries = np.load(folder / QUERIES_NAME, mmap_mode="r", allow_pickle=False)
        return SearchData(
            index_dir=Path(self.index_dir),
            prepared_dir=Path(self.prepared_dir),
            top_k=self.top_k,
            queries=np.asarray(queries),
            probes=np.load(folder / PROBES_NAME, allow_pickle=False),
            earlier=np.load(folder / EARLIER_NAME, mmap_mode="r", allow_pickle=False),
            earlier_probes=np.load(folder / EARLIER_PROBES_NAME, mmap_mode="r", allow_pickle=False),
        )


class ChildRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a process does: `run` the contestant, or write files to `into`.

    `prepare`: the contestant's files; `reference`: ids and scores of an exact search.
    """

    kind: Literal["run", "prepare", "reference"]
    contestant: str
    files: SearchFiles
    limits: Limits
    spawned_us: int = 0
    into: str = ""


class ChildOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a process. `is_bug`: the bench or the contestant is wrong, not a setting."""

    figures: ContestantFigures | None = None
    error: str = ""
    is_bug: bool = False


def main(request_path: Path) -> int:
    """Runs the request and returns the exit status: 0 also where the outcome is a failure."""
    _die_with_parent()
    request = msgspec.json.decode(request_path.read_bytes(), type=ChildRequest)
    folder = request_path.parent
    try:
        outcome = _do(request, folder)
    except (CarpoolError, ContestantError, MemoryError) as error:
        outcome = ChildOutcome(
            error=f"{type(error).__name__}: {error}", is_bug=isinstance(error, ContestantError)
        )
    except Exception as error:
        traceback.print_exc()
        outcome = ChildOutcome(error=f"{type(error).__name__}: {error}", is_bug=True)
    (folder / OUTCOME_NAME).write_bytes(msgspec.json.encode(outcome))
    return 0


def _do(request: ChildRequest, folder: Path) -> ChildOutcome:
    data = request.files.load()
    entry = ENTRIES[request.contestant]
    if request.kind == "prepare":
        assert entry.preparation is not None
        entry.preparation.make(data, Path(request.into))
        return ChildOutcome()
    if request.kind == "reference":
        _search_reference(data, request.limits, Path(request.into))
        return ChildOutcome()
    contestant = entry.make()
    try:
        figures, ids = measure(
            contestant,
            data,
            request.limits,
            spawned_us=request.spawned_us,
            on_answer=_ProgressFile(folder / PROGRESS_NAME),
        )
    finally:
        contestant.close()
    np.save(folder / IDS_NAME, ids)
    return ChildOutcome(figures=figures)


def _search_reference(data: SearchData, limits: Limits, into: Path) -> None:
    """Finds the best of the probed clusters, and the best of all clusters.

    `MARGIN` more than are asked for, so that the scores of ties are known.
    """
    faiss: Any = FaissIvf(in_memory=True)
    faiss.open(data, limits)
    found = [
        faiss.find(
            data.queries[at : at + REFERENCE_BATCH],
            data.probes[at : at + REFERENCE_BATCH],
            data.top_k + MARGIN,
        )
        for at in range(0, len(data.queries), REFERENCE_BATCH)
    ]
    faiss.close()
    true_ids, true_scores = best_of_all(data, data.top_k + MARGIN)
    with into.open("wb") as file:
        np.savez(
            file,
            ids=np.concatenate([ids for ids, _ in found]),
            scores=np.concatenate([scores for _, scores in found]),
            true_ids=true_ids,
            true_scores=true_scores,
        )


def best_of_all(data: SearchData, count: int) -> tuple[Int64, Float32]:
    """Returns ids and scores of the best `count` of all rows for each query: (n, count) each.

    Reads the index once; needs memory for one cluster and its scores.
    """
    queries = np.ascontiguousarray(data.queries)
    best_ids = np.full((len(queries), count), -1, np.int64)
    best_scores = np.full((len(queries), count), -np.inf, np.float32)
    for cluster in read_clusters(open_clusters(data.index_dir)):
        if not len(cluster.rows):
            continue
        scores = queries @ cluster.vectors.T
        taken = np.argpartition(-scores, min(count, scores.shape[1]) - 1, axis=1)[:, :count]
        scores = np.concatenate([best_scores, np.take_along_axis(scores, taken, 1)], axis=1)
        ids = np.concatenate([best_ids, cluster.rows[taken]], axis=1)
        kept = np.argsort(-scores, axis=1, kind="stable")[:, :count]
        best_scores = np.take_along_axis(scores, kept, 1)
        best_ids = np.take_along_axis(ids, kept, 1)
    return best_ids, best_scores


def _die_with_parent() -> None:
    """Makes the kernel kill this process when the bench ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        sys.exit("the bench has ended")


class _ProgressFile:
    """Writes how many queries are answered, at most twice a second."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._next_s = time.monotonic() + PROGRESS_EVERY_S

    def __call__(self, answered: int) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + PROGRESS_EVERY_S
            self._path.write_text(str(answered))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

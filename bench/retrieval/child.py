"""The process of one contestant: `python -m bench.retrieval.child REQUEST.json`, started inside its
cgroup.

Reads a request, measures or prepares, and leaves an outcome beside the request.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from bench.retrieval.contestant import ContestantError, Dataset, Limits
from bench.retrieval.contestants.faiss_ivf import FaissIvf
from bench.retrieval.exactness import MARGIN
from bench.retrieval.measure import Measured, OpenLoopPlan, measure
from bench.retrieval.registry import entry
from carpool.errors import CarpoolError

QUERIES_NAME = "queries.npy"
PROBES_NAME = "probes.npy"
OUTCOME_NAME = "outcome.json"
IDS_NAME = "ids.npy"
PROGRESS_NAME = "progress"
TOLD_EVERY_S = 0.5
PR_SET_PDEATHSIG = 1
REFERENCE_BATCH = 256


class DatasetFiles(msgspec.Struct, frozen=True, kw_only=True):
    """A `Dataset` on disk: `folder` holds queries and probes."""

    index_dir: Path
    prepared_dir: Path
    folder: Path
    dimension: int
    nlist: int
    row_count: int
    top_k: int


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a process shall do: `run` the contestant, `prepare` the files it needs into the folder
    `prepare_into`, or search `numbers` for `reference` and leave ids and scores in the file
    `prepare_into`.
    """

    kind: Literal["run", "prepare", "reference"]
    contestant: str
    dataset: DatasetFiles
    limits: Limits
    numbers: list[int] = []
    open_numbers: list[int] = []
    open_plan: OpenLoopPlan | None = None
    seed: int = 0
    spawned_us: int = 0
    prepare_into: Path | None = None


def encode_request(request: Request) -> bytes:
    """Returns the request as JSON."""
    return msgspec.json.encode(request, enc_hook=str)  # paths are all that JSON has no form for


def decode_request(content: bytes) -> Request:
    """Returns a request that `encode_request` wrote."""
    return msgspec.json.decode(content, type=Request, dec_hook=lambda kind, value: kind(value))


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. `error`: why it failed, in words; `is_bug`: the harness or the contestant is
    wrong, not the setting.
    """

    measured: Measured | None = None
    error: str = ""
    is_bug: bool = False


def load_dataset(files: DatasetFiles) -> Dataset:
    """Returns the data set. Reads queries and probes."""
    return Dataset(
        index_dir=files.index_dir,
        prepared_dir=files.prepared_dir,
        dimension=files.dimension,
        nlist=files.nlist,
        row_count=files.row_count,
        top_k=files.top_k,
        queries=np.asarray(np.load(files.folder / QUERIES_NAME, mmap_mode="r", allow_pickle=False)),
        probes=np.load(files.folder / PROBES_NAME, allow_pickle=False),
    )


def main(request_path: Path) -> int:
    """Does what the request says. Returns the exit status: 0 also for a failure that the outcome
    tells.
    """
    _die_with_parent()
    request = decode_request(request_path.read_bytes())
    folder = request_path.parent
    try:
        outcome = _do(request, folder)
    except (CarpoolError, ContestantError, MemoryError) as error:
        outcome = Outcome(
            error=f"{type(error).__name__}: {error}", is_bug=isinstance(error, ContestantError)
        )
    except Exception as error:
        traceback.print_exc()
        outcome = Outcome(error=f"{type(error).__name__}: {error}", is_bug=True)
    (folder / OUTCOME_NAME).write_bytes(msgspec.json.encode(outcome))
    return 0


def _do(request: Request, folder: Path) -> Outcome:
    dataset = load_dataset(request.dataset)
    chosen = entry(request.contestant)
    if request.kind == "prepare":
        assert chosen.preparation is not None
        assert request.prepare_into is not None
        chosen.preparation.make(dataset, request.prepare_into)
        return Outcome()
    if request.kind == "reference":
        assert request.prepare_into is not None
        _search_reference(dataset, request.limits, request.numbers, request.prepare_into)
        return Outcome()
    contestant = chosen.make()
    try:
        measured, ids = measure(
            contestant,
            dataset,
            request.limits,
            numbers=request.numbers,
            open_numbers=request.open_numbers,
            open_plan=request.open_plan,
            seed=request.seed,
            spawned_us=request.spawned_us,
            on_answer=_Teller(folder / PROGRESS_NAME),
        )
    finally:
        contestant.close()
    np.save(folder / IDS_NAME, ids)
    return Outcome(measured=measured)


def _search_reference(dataset: Dataset, limits: Limits, numbers: list[int], into: Path) -> None:
    """Searches for a few more than are asked for, so that the scores of what ties are known."""
    faiss = FaissIvf("reference", in_memory=True, one_by_one=False)
    faiss.open(dataset, limits)
    top_k = dataset.top_k + MARGIN
    ids = np.full((len(dataset.queries), top_k), -1, dtype=np.int64)
    scores = np.full((len(dataset.queries), top_k), np.nan, dtype=np.float32)
    for start in range(0, len(numbers), REFERENCE_BATCH):
        chosen = numbers[start : start + REFERENCE_BATCH]
        ids[chosen], scores[chosen] = faiss.search(
            dataset.queries[chosen], dataset.probes[chosen], top_k
        )
    faiss.close()
    with into.open("wb") as file:
        np.savez(file, ids=ids, scores=scores)


def _die_with_parent() -> None:
    """Has the kernel end this process when the bench ends without doing so: nobody would ever wait
    for it.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        sys.exit("the bench has ended")


class _Teller:
    """Writes how many queries are answered, now and then, for whoever waits."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._next_s = time.monotonic() + TOLD_EVERY_S

    def __call__(self, answered: int) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + TOLD_EVERY_S
            self._path.write_text(str(answered))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

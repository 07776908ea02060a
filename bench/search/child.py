"""The process of one contestant: `python -m bench.search.child REQUEST.json`, in its cgroup."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from pathlib import Path

import msgspec
import numpy as np

from bench.search.contestants.contestant import ContestantError, Limits, SearchData
from bench.search.contestants.registry import ENTRIES
from bench.search.measure import ContestantFigures, measure
from carpool.errors import CarpoolError

OUTCOME_NAME = "outcome.json"
IDS_NAME = "ids.npy"
ARRAYS = ("queries", "probes", "earlier", "earlier_probes")
PR_SET_PDEATHSIG = 1


class ChildRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A contestant to measure on a `SearchData`. `folder` has its arrays."""

    contestant: str
    limits: Limits
    index_dir: str
    prepared_dir: str
    folder: str
    top_k: int
    spawned_us: int = 0

    def load(self) -> SearchData:
        """Returns the data. Of earlier questions only what is used is read."""
        paths = {name: Path(self.folder, f"{name}.npy") for name in ARRAYS}
        return SearchData(
            index_dir=Path(self.index_dir),
            prepared_dir=Path(self.prepared_dir),
            top_k=self.top_k,
            queries=np.load(paths["queries"], allow_pickle=False),
            probes=np.load(paths["probes"], allow_pickle=False),
            earlier=np.load(paths["earlier"], mmap_mode="r", allow_pickle=False),
            earlier_probes=np.load(paths["earlier_probes"], mmap_mode="r", allow_pickle=False),
        )


class ChildOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a process. `is_bug`: the bench or the contestant is wrong, not a setting."""

    figures: ContestantFigures | None = None
    error: str = ""
    is_bug: bool = False


def main(request_path: Path) -> int:
    """Measures, and writes outcome and ids beside the request; returns 0 also for a failure."""
    _die_with_parent()
    request = msgspec.json.decode(request_path.read_bytes(), type=ChildRequest)
    try:
        outcome = _measured(request, request_path.parent)
    except (CarpoolError, ContestantError, MemoryError) as error:
        outcome = ChildOutcome(
            error=f"{type(error).__name__}: {error}", is_bug=isinstance(error, ContestantError)
        )
    except Exception as error:
        traceback.print_exc()
        outcome = ChildOutcome(error=f"{type(error).__name__}: {error}", is_bug=True)
    (request_path.parent / OUTCOME_NAME).write_bytes(msgspec.json.encode(outcome))
    return 0


def _measured(request: ChildRequest, folder: Path) -> ChildOutcome:
    contestant = ENTRIES[request.contestant].make()
    try:
        figures, ids = measure(
            contestant, request.load(), request.limits, spawned_us=request.spawned_us
        )
    finally:
        contestant.close()
    np.save(folder / IDS_NAME, ids)
    return ChildOutcome(figures=figures)


def _die_with_parent() -> None:
    """Makes the kernel kill this process when the bench ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        sys.exit("the bench has ended")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

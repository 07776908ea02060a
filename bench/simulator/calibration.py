"""From a real run to costs: what computing took in it, which is what it will take in other
windows.
"""

from __future__ import annotations

import statistics
import sys
from bisect import bisect_left
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from bench.simulator.costs import ComputeCosts
from bench.simulator.disk_calibration import DEPTH
from bench.simulator.real import RealRun
from bench.simulator.stopwatch import Call

SLEEP_US = 30.0
"""A wait that took less was none: what it waited for was there."""

Float64 = npt.NDArray[np.float64]


def measured_costs(run: RealRun) -> ComputeCosts:
    """Returns what computing took in `run`."""
    watch, windows = run.watch, run.windows
    tasks = [
        (
            len(s),
            sum(t.pieces for t in s),
            sum(t.rows for t in s),
            sum(t.rows * t.queries for t in s),
        )
        for s in run.scored
    ]
    cluster_us, piece_us, row_us, product_us = not_negative(
        np.array(tasks, dtype=np.float64), np.array([call.took_us for call in watch.calls["score"]])
    )
    blocks = [(1, block.size_bytes / 1024, block.pieces) for block in run.blocks]
    block_us, verify_us, block_piece_us = not_negative(
        np.array(blocks, dtype=np.float64),
        np.array([call.took_us for call in watch.calls["end_block"]]),
    )
    joins_us = _joins_us(run)
    waits = _waits(run)
    known_us = (
        sum(joins_us)
        + sum(wait.took_us for wait in waits)
        + watch.total_us("score")
        + watch.total_us("begin_read", run.search_thread)
    )
    searching_us = sum(window.answered_us - window.arrived_us for window in windows)
    gaps_us = [later.arrived_us - window.answered_us for window, later in pairwise(windows)]
    return ComputeCosts(
        cluster_us=cluster_us,
        piece_us=piece_us,
        row_ns=row_us * 1_000,
        product_ns=product_us * 1_000,
        turn_us=max(0.0, searching_us - known_us) / len(run.scored),
        join_us=statistics.median(joins_us),
        read_us=watch.mean_us("begin_read"),
        wake_us=_wake_us(run, waits),
        arrival_us=statistics.median(gaps_us) if gaps_us else 0.0,
        handover_us=_handover_us(run, waits),
        block_us=block_us,
        verify_ns=verify_us * 1_000,
        block_piece_us=block_piece_us,
    )


def not_negative(measured: Float64, took_us: Float64) -> tuple[float, ...]:
    """Returns what each column of `measured`, (n, columns), costs: least squares, without columns
    that would cost less than 0.
    """
    costs = np.zeros(measured.shape[1])
    kept = list(range(measured.shape[1]))
    while kept:
        # Columns differ by orders of magnitude, and two of them may be the same: scaled, and the
        # shortest solution.
        scale = np.maximum(measured[:, kept].max(axis=0), 1e-9)
        found, *_ = np.linalg.lstsq(measured[:, kept] / scale, took_us, rcond=None)
        if found.min() >= 0:
            costs[kept] = found / scale
            break
        kept.pop(int(found.argmin()))
    return tuple(costs.tolist())


def _joins_us(run: RealRun) -> list[float]:
    """From the arrival of each window until its first cluster is looked for, less what was handed
    to the store meanwhile.
    """
    calls = run.watch.calls
    ready = calls["next_substage"] if "next_substage" in calls else calls["GroupBegan"]
    joined = calls.get("Joined", ready)
    ready_us, joined_us = [call.began_us for call in ready], [call.began_us for call in joined]
    reads = [call for call in calls["begin_read"] if call.thread == run.search_thread]
    joins = []
    for window in run.windows:
        joined_at_us = joined_us[bisect_left(joined_us, window.arrived_us)]
        end_us = ready_us[bisect_left(ready_us, joined_at_us)]
        inside = sum(call.took_us for call in reads if window.arrived_us <= call.began_us < end_us)
        joins.append(end_us - window.arrived_us - inside)
    return joins


def _waits(run: RealRun) -> list[Call]:
    """The waits for reads: those that began and ended while a window was searched."""
    arrivals = [window.arrived_us for window in run.windows]
    waits = []
    for call in run.watch.calls["wait"]:
        at = bisect_left(arrivals, call.began_us) - 1
        if at >= 0 and call.began_us + call.took_us <= run.windows[at].answered_us:
            waits.append(call)
    return waits


def _wake_us(run: RealRun, waits: list[Call]) -> float:
    """From the moment when the end of a read is told until the thread that waited for it goes
    on.
    """
    told_us = sorted(call.began_us for call in run.watch.calls["told"])
    wakes = []
    for wait in waits:
        ended_us = wait.began_us + wait.took_us
        at = bisect_left(told_us, ended_us) - 1
        if at >= 0 and told_us[at] > wait.began_us:
            wakes.append(ended_us - told_us[at])
    return statistics.median(wakes) if wakes else 0.0


def _handover_us(run: RealRun, waits: list[Call]) -> float:
    """How long the engine's thread waits for the interpreter while the search thread computes: time
    waited over turns got.

    By the blocks that the search thread asked for while the kernel had room for them and the
    engine's thread slept: from then on until the kernel got them, or until the search thread slept,
    which gives way at once. (The mean of an exponential time, of which some were cut off.) Never
    more than the switch interval: then the interpreter takes it from whoever has it.
    """
    asked_us, ended_us = (np.sort(times) for times in _times(run))
    sleeps_us = np.array([wait.began_us for wait in waits if wait.took_us >= SLEEP_US])
    busy = sorted(
        (call.began_us, call.began_us + call.took_us) for call in run.watch.calls["end_block"]
    )
    waited_us, turns = 0.0, 0
    for block in run.blocks:
        outstanding = np.searchsorted(asked_us, block.asked_us, "right") - np.searchsorted(
            ended_us, block.asked_us
        )
        verifying = bisect_left(busy, (block.asked_us,)) - 1
        is_busy = verifying >= 0 and busy[verifying][1] >= block.asked_us
        sleep = int(np.searchsorted(sleeps_us, block.asked_us))
        if outstanding > DEPTH or is_busy or sleep == len(sleeps_us):
            continue
        waited_us += max(0.0, min(block.given_us, sleeps_us[sleep]) - block.asked_us)
        turns += bool(block.given_us <= sleeps_us[sleep])
    return min(float(waited_us) / max(1, turns), sys.getswitchinterval() * 1e6)


def _times(run: RealRun) -> tuple[Float64, Float64]:
    return np.array([block.asked_us for block in run.blocks]), np.array(
        [block.ended_us for block in run.blocks]
    )

"""Who runs when: for each seed and window a block, in it every contestant once, and the disk
before, amid and after them.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np

from bench.core.agreement import Agreement
from bench.core.machine import this_revision
from bench.retrieval import oracles
from bench.retrieval.cells import CELLS_NAME, Cell, CellFile, Line, OracleCell, writing
from bench.retrieval.child import IDS_NAME, PROBES_NAME, QUERIES_NAME, DatasetFiles, Request
from bench.retrieval.contestant import Entry, Int32, Limits
from bench.retrieval.dataset import (
    IndexView,
    Questions,
    choose_questions,
    index_for,
    open_view,
    probes_of,
)
from bench.retrieval.disks import measure_block
from bench.retrieval.exactness import check_exact
from bench.retrieval.kernel import drop_page_cache
from bench.retrieval.plan import Plan, check_cache_budgets, settings_id
from bench.retrieval.processes import run_child
from bench.retrieval.questions import Asked
from bench.retrieval.registry import REFERENCE, entry
from carpool.errors import CarpoolError, ConfigError

REFERENCE_NAME = "reference.npz"


class Tell:
    """Who is told how a run goes. This one tells nobody."""

    def begins(self, what: str, done: int, total: int) -> None:
        """Cell `done` of `total` begins."""

    def answered(self, queries: int, total: int) -> None:
        """Of the cell at hand, `queries` of `total` are answered."""

    def ended(self, cell: Cell) -> None:
        """A cell is done and written."""

    def note(self, text: str) -> None:
        """Something else worth a line."""


@dataclass(frozen=True, kw_only=True)
class _Seed:
    """The data of a seed, ready on disk."""

    seed: int
    view: IndexView
    questions: Questions
    probes: Int32
    files: DatasetFiles
    folder: Path


def order_of(contestants: Sequence[str], seed: int, window: int) -> list[str]:
    """Returns the contestants in the order of a block: a permutation of its own, so that none has
    always the same neighbour before it, nor the same place. Pure.
    """
    return [
        contestants[at]
        for at in np.random.default_rng((seed, window)).permutation(len(contestants))
    ]


class Run:
    """A run of `carpool bench search`. Blocks for as long as all cells take; what is done is in
    `cells` at once.
    """

    def __init__(self, plan: Plan, asked: Sequence[Asked], tell: Tell) -> None:
        """`asked`: once for all, or for each index. Opens the indexes; raises `ConfigError` for
        what does not fit.
        """
        self.plan = plan
        self._entries = [entry(name) for name in plan.contestants]
        if plan.cache_share is not None:
            check_cache_budgets(self._entries)
        self._tell = tell
        self.views = [open_view(index_for(plan.indexes, seed)) for seed in range(plan.seeds)]
        self._questions = [
            self._chosen(asked[seed if len(asked) > 1 else 0], seed) for seed in range(plan.seeds)
        ]
        versions = [view.version for view in self.views[: len(plan.indexes)]]
        self.settings_id = settings_id(plan, versions, [each.vectors for each in asked])
        self.cells = CellFile(plan.out / CELLS_NAME)
        self._unprepared: dict[tuple[int, str], str] = {}  # (seed, preparation): why

    def _chosen(self, asked: Asked, seed: int) -> Questions:
        plan = self.plan
        chosen = choose_questions(
            asked.vectors, self.views[seed].dimension, plan.queries, seed, left_out=asked.left_out
        )
        if plan.open_loop is not None and len(chosen.open_numbers) < plan.open_loop.queries_min:
            raise ConfigError(
                f"the p99 of a rate is of {plan.open_loop.queries_min} questions or more, and "
                f"there are {len(chosen.open_numbers)}: name a file of more with --questions, or "
                "leave it out with --no-open-loop"
            )
        return chosen

    def lines(self) -> list[Line]:
        """Returns what there is of this run."""
        return self.cells.read(self.settings_id)

    def run(self) -> list[Line]:
        """Runs every cell that is not there yet and returns all lines.

        Cells that failed for another reason than memory run again. What there is of a block stays,
        its ratios are then of cells that did not run next to each other.
        """
        done = {
            line.key
            for line in self.lines()
            if isinstance(line, Cell) and line.status in ("ok", "out of memory")
        }
        wanted = [
            (seed, window, name)
            for seed in range(self.plan.seeds)
            for window in self.plan.windows
            for name in order_of(self.plan.contestants, seed, window)
        ]
        missing = [key for key in wanted if key not in done]
        blocks = list(dict.fromkeys((seed, window) for seed, window, _ in wanted))
        at = 0
        for seed in range(self.plan.seeds):
            if not any(key[0] == seed for key in missing):
                continue
            prepared = self._prepare(seed)
            for window in (window for of_seed, window in blocks if of_seed == seed):
                names = [
                    name
                    for of_seed, of_window, name in missing
                    if (of_seed, of_window) == (seed, window)
                ]
                if names:
                    self._block(prepared, window, names, at, len(missing))
                    at += len(names)
        return self.lines()

    def _block(self, seed: _Seed, window: int, names: Sequence[str], at: int, total: int) -> None:
        self._disk(seed, window)
        self._oracles(seed, window)
        for offset, name in enumerate(names):
            if offset and offset == len(names) // 2:
                self._disk(seed, window)
            self._tell.begins(f"seed {seed.seed}, windows of {window}: {name}", at + offset, total)
            cell = self._cell(seed, window, entry(name))
            self.cells.append(cell)
            self._tell.ended(cell)
        self._disk(seed, window)

    def _cell(self, seed: _Seed, window: int, chosen: Entry) -> Cell:
        plan = self.plan
        limits = plan.limits(seed.view, chosen, window)
        request = Request(
            kind="run",
            contestant=chosen.name,
            dataset=seed.files,
            limits=limits,
            numbers=seed.questions.closed_numbers,
            open_numbers=seed.questions.open_numbers,
            open_plan=plan.open_loop,
            seed=seed.seed,
        )
        cell = Cell(
            settings_id=self.settings_id,
            seed=seed.seed,
            window=window,
            contestant=chosen.name,
            status="failed",
            limit_bytes=limits.memory_bytes,
            cache_bytes=limits.cache_bytes,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            revision=this_revision(),  # now: a run of hours may see another
        )
        if chosen.preparation is not None and (
            why := self._unprepared.get((seed.seed, chosen.preparation.name))
        ):
            return msgspec.structs.replace(cell, error=why)
        folder = plan.out / "cells" / f"{seed.seed}-{window}-{chosen.name}"
        dropped = drop_page_cache(
            [seed.view.dir, seed.files.prepared_dir], everything=plan.empty_page_cache
        )
        ended = run_child(
            request,
            folder,
            held_by=plan.held_by,
            limit_bytes=limits.memory_bytes,
            timeout_s=plan.timeout_s,
            on_progress=lambda answered: self._tell.answered(answered, plan.queries),
        )
        is_ok = ended.status == "ok"
        return msgspec.structs.replace(
            cell,
            status=ended.status,
            error=ended.outcome.error,
            is_bug=ended.outcome.is_bug,
            duration_s=round(ended.duration_s, 3),
            page_cache_dropped=dropped,
            held=ended.held,
            measured=ended.outcome.measured if is_ok else None,
            agreement=self._agreement(seed, folder) if is_ok and chosen.is_exact else None,
        )

    def _agreement(self, seed: _Seed, folder: Path) -> Agreement:
        found = np.load(folder / IDS_NAME, allow_pickle=False)
        with np.load(seed.folder / REFERENCE_NAME, allow_pickle=False) as reference:
            return check_exact(
                found, reference["ids"], reference["scores"], seed.questions.closed_numbers
            )

    def _disk(self, seed: _Seed, window: int) -> None:
        self.cells.append(
            measure_block(
                seed.view,
                settings_id=self.settings_id,
                seed=seed.seed,
                window=window,
                duration_s=self.plan.disk_s,
                into_bytes=self.plan.budget_bytes(seed.view),
            )
        )

    def _oracles(self, seed: _Seed, window: int) -> None:
        probes = seed.probes[seed.questions.closed_numbers]
        counts = oracles.window_counts(probes, window, seed.view.nlist)
        budget_bytes = self.plan.budget_bytes(seed.view)
        found = {
            "oracle-window": oracles.oracle_window(counts, seed.view.cluster_bytes),
            "oracle-static": oracles.oracle_static(counts, seed.view.cluster_bytes, budget_bytes),
        }
        for name, bytes_found in found.items():
            self.cells.append(
                OracleCell(
                    settings_id=self.settings_id,
                    seed=seed.seed,
                    window=window,
                    name=name,
                    queries=self.plan.queries,
                    found=bytes_found,
                )
            )

    def _prepare(self, seed: int) -> _Seed:
        """Writes questions and probes, makes what contestants need and is not there, and the
        reference.
        """
        view, questions = self.views[seed], self._questions[seed]
        probes = probes_of(view, questions, self.plan.nprobe)
        folder = self.plan.out / f"seed-{seed}"
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            np.save(folder / QUERIES_NAME, questions.vectors)
            np.save(folder / PROBES_NAME, probes)
        prepared_dir = self.plan.work / "prepared" / _folder_name(view)
        files = DatasetFiles(
            index_dir=view.dir.absolute(),
            prepared_dir=prepared_dir.absolute(),
            folder=folder.absolute(),
            dimension=view.dimension,
            nlist=view.nlist,
            row_count=view.row_count,
            top_k=self.plan.top_k,
        )
        prepared = _Seed(
            seed=seed, view=view, questions=questions, probes=probes, files=files, folder=folder
        )
        self._make(entry(REFERENCE), prepared, prepared_dir)
        for chosen in self._entries:
            try:
                self._make(chosen, prepared, prepared_dir)
            except CarpoolError as error:  # the others can run without it
                assert chosen.preparation is not None
                self._unprepared[seed, chosen.preparation.name] = str(error)
        self._reference(prepared)
        return prepared

    def _make(self, chosen: Entry, seed: _Seed, prepared_dir: Path) -> None:
        preparation = chosen.preparation
        if preparation is None or (prepared_dir / preparation.name).exists():
            return
        if (seed.seed, preparation.name) in self._unprepared:
            return  # it would fail again
        self._tell.note(f"making the files of {chosen.name} for {seed.view.dir}, once")
        half = prepared_dir / (preparation.name + ".half")
        shutil.rmtree(half, ignore_errors=True)
        with writing(half):
            half.mkdir(parents=True)
        self._child(
            Request(
                kind="prepare",
                contestant=chosen.name,
                dataset=seed.files,
                limits=Limits(memory_bytes=None, threads=self.plan.threads, window=1),
                prepare_into=half.absolute(),
            ),
            seed.folder / f"prepare-{preparation.name}",
            f"the files of {chosen.name} could not be made",
        )
        half.rename(prepared_dir / preparation.name)

    def _reference(self, seed: _Seed) -> None:
        path = seed.folder / REFERENCE_NAME
        path.unlink(missing_ok=True)
        self._tell.note(
            f"seed {seed.seed}: searching all questions with {REFERENCE}, for comparison"
        )
        request = Request(
            kind="reference",
            contestant=REFERENCE,
            dataset=seed.files,
            limits=Limits(memory_bytes=None, threads=self.plan.threads, window=1),
            prepare_into=path.absolute(),
            numbers=seed.questions.closed_numbers,
        )
        self._child(request, seed.folder / "reference", "the reference could not be searched")

    def _child(self, request: Request, folder: Path, failure: str) -> None:
        ended = run_child(
            request, folder, held_by="none", limit_bytes=None, timeout_s=self.plan.timeout_s
        )
        if ended.status != "ok":
            raise CarpoolError(f"{failure}: {ended.outcome.error} (log: {folder / 'log'})")


def _folder_name(view: IndexView) -> str:
    kept = [letter if letter.isalnum() or letter in "-." else "-" for letter in view.version]
    return f"{''.join(kept)}-{hashlib.sha256(str(view.dir.absolute()).encode()).hexdigest()[:8]}"

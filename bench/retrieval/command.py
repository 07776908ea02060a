"""What `carpool bench search` does: runs the cells, writes the report, prints the tables."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from bench.baselines.registry import chosen_names
from bench.core.machine import data_file
from bench.core.progress import progress_bars
from bench.core.report import RunStart, finish
from bench.data.index import BenchIndex
from bench.retrieval.cli import MEMORY_SHARE, SearchOptions
from bench.retrieval.plan import SearchPlan
from bench.retrieval.questions import question_paths, read_question_vectors
from bench.retrieval.report import (
    SearchResults,
    print_remarks,
    print_summary,
    promises_of,
)
from bench.retrieval.run import SearchRun
from bench.retrieval.summary import summarise
from carpool.errors import ConfigError
from carpool.terminal import TerminalConsole


def plan_of(options: SearchOptions) -> SearchPlan:
    """Returns what the options ask for. Raises `ConfigError`."""
    memory_share = options.memory
    if options.memory is None and options.cache is None:
        memory_share = MEMORY_SHARE
    return SearchPlan(
        indexes=tuple(options.index),
        contestants=chosen_names(options.contestants, with_cache_budget=options.cache is not None),
        windows=parse_windows(options.windows),
        seeds=options.seeds,
        queries=options.queries,
        nprobe=options.nprobe,
        memory_share=memory_share,
        cache_share=options.cache,
        limited_by=options.memory_held_by,
        timeout_s=options.cell_timeout_s,
        work=options.work,
        hour_price=options.hour_price,
    )


def run_plan(
    plan: SearchPlan,
    *,
    data: Path | None,
    questions: Sequence[Path],
    json_file: Path | None,
    environ: Mapping[str, str] = os.environ,
) -> bool:
    """Runs all cells, reports them, and returns whether every promise was kept. Blocks.

    `questions`: .npy files, one for all indexes or one for each; none: those of the evaluation
    data. After Ctrl-C the cells that are done are reported. Raises `ConfigError`.
    """
    start = RunStart.now()
    console = TerminalConsole(stderr=True)
    paths = question_paths(questions, len(plan.indexes), data, environ)
    asked = [read_question_vectors(of_index) for of_index in paths]
    plan.work.mkdir(parents=True, exist_ok=True)

    def note(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    with _interrupted_by_sigterm(), progress_bars(console) as tell:
        run = SearchRun(plan, asked, tell=tell, note=note)
        try:
            run.run()
        except KeyboardInterrupt:
            note("stopped: the report has the cells that are done")
    found, views = run.results, run.views[: len(plan.indexes)]
    results = SearchResults(
        is_memory_limited=plan.is_memory_limited,
        left_out=sum(each.left_out for each in asked),
        indexes=tuple(BenchIndex(dir=view.dir, manifest=view.manifest).facts for view in views),
        budgets_bytes=tuple(map(plan.budget_bytes, views)),
        summary=summarise(found, plan.windows, plan.contestants, plan.baseline),
        cells=found,
    )
    report = start.report(
        "search",
        settings=plan,
        promises=promises_of(results.summary, found.cells),
        results=results,
        data=tuple(data_file(path) for of_index in paths for path in of_index),
    )

    def show(output: Console) -> None:
        print_summary(output, results.summary, plan.hour_price)
        print_remarks(output, results, plan)

    return finish(report, json_file, show)


def parse_windows(text: str) -> tuple[int, ...]:
    """Returns the window sizes of `20,100`. Raises `ConfigError` for anything else."""
    try:
        windows = tuple(int(part) for part in text.split(","))
    except ValueError:
        windows = ()
    if not windows or min(windows) < 1 or len(set(windows)) != len(windows):
        raise ConfigError(f"--windows {text}: give window sizes such as 20,100")
    return windows


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the run as Ctrl-C does: the process is ended and its cgroup removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

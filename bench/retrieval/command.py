"""What `carpool bench search` does: questions and indexes in, blocks run, JSON, table and plot out.

`bench.retrieval.cli` has the options.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.core.machine import data_file, program, this_machine, this_revision
from bench.retrieval.blocks import Run, Tell
from bench.retrieval.cells import CELLS_NAME, Cell, writing
from bench.retrieval.plan import Plan
from bench.retrieval.plot import plot_summary
from bench.retrieval.questions import question_paths, read_asked
from bench.retrieval.registry import ENTRIES
from bench.retrieval.report import (
    HELD_TO_STATIC,
    REPORT_NAME,
    SCHEMA_VERSION,
    IndexSearched,
    SearchReport,
    print_summary,
    promises_of,
    remarks,
    write_json,
)
from bench.retrieval.summary import BASELINES, Summary, revision_of, summarise
from carpool.errors import ConfigError

PLOT_NAME = "report.png"
TABLE_WIDTH = 190
"""Where there is no terminal that has a width."""


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What the command is told besides the plan. `questions`: .npy files, one for all or one for
    each index; none: those of the evaluation data; `static_max`: see `report.promises_of`.
    """

    data: Path | None
    questions: tuple[Path, ...]
    baseline: str | None
    resume: bool
    plot: bool
    static_max: float | None = None


def list_contestants(console: Console) -> None:
    """Prints who can take part."""
    table = Table("contestant", "ids", "--memory", "--cache", "what it is", title="Contestants")
    for entry in ENTRIES.values():
        table.add_row(
            entry.name,
            "exact" if entry.is_exact else "approximate",
            "limited" if entry.is_limited else "no limit",
            "limited" if entry.has_cache_budget else "takes no part",
            entry.summary,
        )
    table.add_row(
        "oracle-window",
        "-",
        "-",
        "-",
        "computed: each wanted cluster is read once a window, nothing is kept",
        style="dim",
    )
    table.add_row(
        "oracle-static",
        "-",
        "-",
        "-",
        "computed: the best fixed set is kept, the rest is read once a window",
        style="dim",
    )
    console.print(table)


def search(plan: Plan, wishes: Wishes, environ: Mapping[str, str] = os.environ) -> bool:
    """Runs what is missing, reports all, and returns whether every promise held. Blocks for as long
    as the cells take.
    """
    console = Console(stderr=True)
    started, started_s = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    baseline = _baseline(plan, wishes.baseline)
    _check_out(plan.out, wishes.resume)
    paths = question_paths(wishes.questions, len(plan.indexes), wishes.data, environ)
    asked = [read_asked(of_index) for of_index in paths]
    if wishes.static_max is not None and HELD_TO_STATIC not in plan.contestants:
        raise ConfigError(
            f"--static-max is what {HELD_TO_STATIC} is held to, and it does not take part: add it "
            "to --contestants"
        )
    with _terminable(), _Console(console, plan.queries) as tell:
        run = Run(plan, asked, tell)
        with writing(plan.out):
            plan.out.mkdir(parents=True, exist_ok=True)
        try:
            lines = run.run()
        except KeyboardInterrupt:
            tell.note(
                f"stopped; the cells that are done are in {plan.out}, and --resume goes on from "
                "there"
            )
            raise
    summary = summarise(lines, plan.windows, plan.contestants, baseline)
    report = SearchReport(
        schema_version=SCHEMA_VERSION,
        benchmark="search",
        command=program(),
        started=started,
        duration_s=round(time.monotonic() - started_s, 3),
        machine=this_machine(),
        revision=this_revision(),
        revisions=tuple(
            dict.fromkeys(revision_of(line) for line in lines if isinstance(line, Cell))
        ),
        data=tuple(data_file(path) for of_index in paths for path in of_index),
        questions=tuple(file for each in asked for file in each.files),
        indexes=_indexes(run),
        settings=msgspec.to_builtins(plan, enc_hook=str),
        is_memory_held=plan.is_memory_held,
        promises=promises_of(summary, lines, wishes.static_max),
        summary=summary,
        lines=lines,
    )
    write_json(report, plan.out / REPORT_NAME)
    output = Console()
    _print(output if output.is_terminal else Console(width=TABLE_WIDTH), report, summary, plan)
    if wishes.plot:
        plot_summary(summary, plan.out / PLOT_NAME)
    return report.holds


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends the run as Ctrl-C does: the contestant's process is ended and its cgroup
    removed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _baseline(plan: Plan, wished: str | None) -> str:
    if wished is not None and wished not in plan.contestants:
        raise ConfigError(
            f"--baseline {wished}: ratios are to a contestant that takes part, and those are "
            f"{', '.join(plan.contestants)}"
        )
    return wished or next(
        (name for name in BASELINES if name in plan.contestants), plan.contestants[0]
    )


def _check_out(out: Path, resume: bool) -> None:
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file: name a folder for the results")
    if (out / CELLS_NAME).exists() and not resume:
        raise ConfigError(
            f"there are results in {out}: give --resume to go on with them, or another --out"
        )


def _indexes(run: Run) -> tuple[IndexSearched, ...]:
    count = len(run.plan.indexes)
    return tuple(
        IndexSearched(
            dir_name=view.dir.name,
            seeds=tuple(range(run.plan.seeds)) if count == 1 else (number,),
            index_version=view.version,
            format=view.manifest.format,
            row_count=view.row_count,
            dimension=view.dimension,
            nlist=view.nlist,
            vectors_bytes=view.vectors_bytes,
            clusters_bytes=int(view.cluster_bytes.sum()),
            budget_bytes=run.plan.budget_bytes(view),
            embedding_model=view.manifest.embedding_model_name,
        )
        for number, view in enumerate(run.views[:count])
    )


def _print(console: Console, report: SearchReport, summary: Summary, plan: Plan) -> None:
    print_summary(console, summary)
    if not report.is_memory_held:
        console.print(
            memory_not_held(plan, report.indexes), style="yellow", highlight=False, soft_wrap=True
        )
    if len(plan.indexes) == 1 and plan.seeds > 1:
        console.print(
            "seeds differ in the order of arrival only: give --index once for each seed to vary "
            "data and training"
        )
    for remark in remarks(report):
        console.print(remark, style="yellow", markup=False, highlight=False, soft_wrap=True)
    for promise, held in report.promises.items():
        console.print(f"{'[green]holds [/]' if held else '[red]BROKEN[/]'} {promise}")
    console.print(f"JSON: {plan.out / REPORT_NAME}", soft_wrap=True)


def memory_not_held(plan: Plan, indexes: Sequence[IndexSearched]) -> str:
    """Returns what must be said of a run in which no process was held to a limit."""
    if plan.cache_share is None:
        return "memory was not held: contestants could take what they liked (--memory-held-by none)"
    budgets = ", ".join(
        dict.fromkeys(f"{(index.budget_bytes or 0) / 1e6:,.1f} MB" for index in indexes)
    )
    return (
        "processes were not held to a limit: each cache, reads under way included, had "
        f"{plan.cache_share:.1%} of the clusters' bytes ({budgets}), and the static oracle kept as "
        "much; interpreter and scratch came on top (--cache)"
    )


class _Console(Tell):
    """Shows the cell at hand, and a line for each that is done."""

    def __init__(self, console: Console, queries: int) -> None:
        self._console = console
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
        )
        self._progress = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
        self._task = self._progress.add_task("opening", total=queries)

    def __enter__(self) -> _Console:
        """Begins to show."""
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends."""
        self._progress.stop()

    def begins(self, what: str, done: int, total: int) -> None:
        """A cell begins."""
        self._progress.reset(self._task, description=f"[{done + 1}/{total}] {what}")

    def answered(self, queries: int, total: int) -> None:
        """Queries of the cell at hand are answered."""
        self._progress.update(self._task, completed=queries, total=total)

    def ended(self, cell: Cell) -> None:
        """A cell is done."""
        self._console.print(told(cell), markup=False, highlight=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """Something else."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def told(cell: Cell) -> str:
    """Returns a cell in one line."""
    head = f"seed {cell.seed}, windows of {cell.window}, {cell.contestant}: "
    if cell.measured is None:
        return f"{head}{cell.status}: {cell.error}"
    closed, opened = cell.measured.closed, cell.measured.open_loop
    words = [
        f"{closed.queries_per_s:,.1f} queries/s",
        f"p99 {closed.latency_ms.p99:,.1f} ms",
        f"{closed.usage.kernel_read_bytes / closed.queries / 1e6:,.2f} MB a query",
        f"first answer {cell.measured.first_answer_us / 1e6:.1f} s",
    ]
    if opened is not None:
        words.append(f"holds {opened.found.held_per_s:,.0f}/s")
    if cell.agreement is not None:
        words.append(
            f"{cell.agreement.same} same, {cell.agreement.tied} tied, {cell.agreement.different} "
            "different"
        )
    if not cell.bytes_agree:
        words.append("BYTES DISAGREE")
    return head + ", ".join(words)


def parse_windows(text: str) -> tuple[int, ...]:
    """Returns the window sizes of `20,100`. Raises `ConfigError` for anything else."""
    try:
        windows = tuple(int(part) for part in text.split(","))
    except ValueError:
        windows = ()
    if not windows or min(windows) < 1 or len(set(windows)) != len(windows):
        raise ConfigError(f"--windows {text}: give window sizes such as 20,100")
    return windows


def parse_contestants(text: str | None, *, with_cache_budget: bool = False) -> tuple[str, ...]:
    """Returns the names of `a,b`; `cagr-*` stands for those that begin so. None: all of them, or
    all with a cache budget.

    Raises `ConfigError` for a name that there is not.
    """
    if text is None:
        return tuple(
            name
            for name, entry in ENTRIES.items()
            if entry.has_cache_budget or not with_cache_budget
        )
    names: list[str] = []
    for part in text.split(","):
        matching = _matching(part.strip())
        if not matching:
            raise ConfigError(
                f"there is no contestant {part.strip()!r}; there are {', '.join(ENTRIES)}. --list "
                "says what each is"
            )
        names.extend(name for name in matching if name not in names)
    return tuple(names)


def _matching(part: str) -> Sequence[str]:
    if part.endswith("*"):
        return [name for name in ENTRIES if name.startswith(part[:-1])]
    return [part] if part in ENTRIES else []

"""What `carpool batch` shows: how far a run is, what it costs, and which batches there are."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from cli.console import facts, table
from producers.batch.costs import Costs
from producers.batch.input_file import InputFile
from producers.batch.plan import BatchPlan
from producers.batch.run import BatchRun, End
from schemas.batch import Batch

TOLD_S = 0.25
LINE_S = 10.0
"""How often a line is written where there is no terminal."""
RATE_S = 30.0
"""The time over which the rate is taken."""
HOW_ENDED: dict[End, str] = {
    "done": "every question has its answer",
    "stopped": "stopped; give the same command again to go on",
    "cancelled": "cancelled; give the same command again to ask the rest",
    "cap": "the next question could pass --max-cost; give the command again with a higher one",
    "sampled": "the sample is answered",
    "taken over": "another runner has taken over this batch, and goes on",
}


class RunReport:
    """Shows how far a run is: a bar on a terminal, else a line every ten seconds."""

    plan: BatchPlan

    def __init__(self, console: Console, costs: Costs) -> None:
        """The caller sets `plan` before the run begins."""
        self._console = console
        self._costs = costs
        self._recent: deque[tuple[float, int]] = deque()
        self._told_s = self._lined_s = 0.0
        words = TextColumn("{task.description}"), TextColumn("{task.fields[facts]}")
        columns = words[0], BarColumn(), MofNCompleteColumn(), words[1]
        self._bar = Progress(*columns, console=console)
        self._task = self._bar.add_task("checked", total=None, facts="lines")

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def checked(self, lines: int) -> None:
        """Shows how many lines of the input were checked."""
        self._bar.update(self._task, completed=lines)

    def begin(self, source: InputFile, errors: Path) -> None:
        """Says what the input is."""
        text = f"{source.path}: {source.kind}; {source.facts.questions:,} questions"
        if source.equal:
            text += f", {source.equal:,} of them equal to an earlier one"
        self._console.print(text)
        if source.refused:
            what = f"{len(source.refused):,} lines cannot be asked: see {errors}"
            self._console.print(what, style="yellow")
        self._bar.update(self._task, description="answered", total=source.facts.questions)

    def waits(self, why: str) -> None:
        """Says what the run waits for."""
        self._show(why)

    def tell(self, run: BatchRun) -> None:
        """Shows how far the run is, a few times a second."""
        now_s = time.monotonic()
        if now_s - self._told_s < TOLD_S:
            return
        self._told_s = now_s
        self._recent.append((now_s, run.answered))
        while now_s - self._recent[0][0] > RATE_S:
            self._recent.popleft()
        parts = [f"{count:,} {name}" for name, count in (+self.plan.counts).items()]
        if (rate := self._rate()) > 0:
            parts.append(f"{rate:,.1f}/s, {duration(self.plan.open / rate)} left")
        costs = self._costs
        parts.append(f"{costs.input_tokens:,} + {costs.output_tokens:,} tokens")
        if costs.prices.of(1, 1):
            parts.append(f"cost {costs.cost:,.4f}")
        self._show(run.note or ", ".join(parts))

    def _rate(self) -> float:
        """Returns answers a second, of the last half minute."""
        if len(self._recent) < 2:
            return 0.0
        (first_s, first), (last_s, last) = self._recent[0], self._recent[-1]
        return (last - first) / (last_s - first_s)

    def _show(self, what: str) -> None:
        done, now_s = self.plan.counts.total(), time.monotonic()
        self._bar.update(self._task, completed=done, facts=what)
        if not self._console.is_terminal and now_s - self._lined_s >= LINE_S:
            self._lined_s = now_s
            self._console.print(f"{done:,} of {done + self.plan.open:,} answered: {what}")

    def end(self, ended: End, source: InputFile) -> dict[str, Any]:
        """Returns how a run ended, and what is known of the batch then."""
        return {
            "batch_id": source.batch_id,
            "ended": ended,
            **{str(name): count for name, count in self.plan.counts.items()},
            "questions": source.facts.questions,
            "open": self.plan.open,
            "refused": len(source.refused),
            "input_tokens": self._costs.input_tokens,
            "output_tokens": self._costs.output_tokens,
            "cost": self._costs.cost,
        }

    def estimate(self, source: InputFile) -> dict[str, Any]:
        """Returns what the open lines will cost, by those that were answered.

        Lines that are equal to another one are paid once. The cost has a 95 % interval.
        """
        paid = self.plan.open * (1 - source.equal / max(1, source.facts.questions))
        costs, rate = self._costs, self._rate()
        cost, half = costs.of_more(paid)
        share = paid / max(1, costs.answers)
        return {
            "answered": self.plan.counts.total(),
            "cost_so_far": costs.cost,
            "open": self.plan.open,
            "equal": source.equal,
            "input_tokens": round(costs.input_tokens * share),
            "output_tokens": round(costs.output_tokens * share),
            "cost": cost,
            "cost_low": max(0.0, cost - half),
            "cost_high": cost + half,
            "seconds": self.plan.open / rate if rate else None,
        }


def duration(seconds: float) -> str:
    """Returns a time for people, such as `2 h 05 min`."""
    minutes, rest_s = divmod(int(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60:,} h {minutes % 60:02} min"
    return f"{minutes} min {rest_s:02} s" if minutes else f"{rest_s} s"


def batches_table(batches: Sequence[Batch]) -> Table:
    """Returns a table of batches."""
    columns = ("batch", "file", "state", "answers", "ok", "questions", "changed")
    made = table(*columns, whole=("batch",))
    for batch in batches:
        counts = (sum(batch.counts.values()), batch.counts.get("ok", 0), batch.file.questions)
        cells = (batch.file.name, batch.state, *(f"{count:,}" for count in counts))
        made.add_row(batch.batch_id[:8], *cells, _time(batch.updated_ms))
    return made


def values_table(values: Mapping[str, Any]) -> Table:
    """Returns a table of names and values."""
    shown = {
        name.replace("_", " "): f"{value:,.4f}" if isinstance(value, float) else str(value)
        for name, value in values.items()
        if value is not None
    }
    return facts(shown)


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")

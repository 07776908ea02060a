"""What `carpool batch` shows: how far a run is, what it costs, and which batches there are."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import msgspec
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
    "cap": "the next question could pass --max-cost",
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
        self._questions = 0
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
            what = f"{len(source.refused):,} lines cannot be asked, the first: "
            self._console.print(f"{what}{source.first_refused}. See {errors}", style="yellow")
        self._questions = source.facts.questions
        self._bar.update(self._task, description="answered", total=self._questions)

    def tell(self, run: BatchRun) -> None:
        """Shows how far the run is, a few times a second."""
        now_s = time.monotonic()
        if now_s - self._told_s < TOLD_S:
            return
        self._told_s = now_s
        if self._recent and run.answered < self._recent[-1][1]:
            self._recent.clear()  # what the log had is no rate
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
        done = self._questions - self.plan.open
        self._bar.update(self._task, completed=done)
        facts = run.note or ", ".join(parts)
        self._show(facts, run.note or f"{done:,} of {self._questions:,} answered: {facts}")

    def _rate(self) -> float:
        """Returns answers a second, of the last half minute."""
        if len(self._recent) < 2:
            return 0.0
        (first_s, first), (last_s, last) = self._recent[0], self._recent[-1]
        return (last - first) / (last_s - first_s)

    def _show(self, what: str, line: str) -> None:
        now_s = time.monotonic()
        self._bar.update(self._task, facts=what)
        if not self._console.is_terminal and now_s - self._lined_s >= LINE_S:
            self._lined_s = now_s
            self._console.print(line)

    def end(self, ended: End, source: InputFile) -> dict[str, Any]:
        """Returns how a run ended, and what is known of the batch then."""
        costs = self._costs
        return {
            "batch_id": source.batch_id,
            "ended": ended,
            **{str(name): count for name, count in self.plan.counts.items()},
            "questions": source.facts.questions,
            "open": self.plan.open,
            "refused": len(source.refused),
            "reused": costs.reused,
            "input_tokens": costs.input_tokens,
            "output_tokens": costs.output_tokens,
            "cost": costs.cost if costs.prices.of(1, 1) else None,
        }

    def estimate(self, source: InputFile) -> dict[str, Any]:
        """Returns what the open lines will cost, by those that were answered.

        Lines that are equal to another one are paid once. The cost has a 95 % interval.
        """
        paid = self.plan.open * (1 - source.equal / max(1, source.facts.questions))
        costs, rate = self._costs, self._rate()
        cost, half = costs.of_more(paid)
        share, has_prices = paid / max(1, costs.answers), costs.prices.of(1, 1) > 0
        return {
            "answered": self.plan.counts.total(),
            "cost_so_far": costs.cost if has_prices else None,
            "left": self.plan.open,
            "equal_lines": source.equal,
            "left_input_tokens": round(costs.input_tokens * share),
            "left_output_tokens": round(costs.output_tokens * share),
            "left_cost": cost if has_prices else None,
            "left_cost_low": max(0.0, cost - half) if has_prices else None,
            "left_cost_high": cost + half if has_prices else None,
            "left_seconds": round(self.plan.open / rate, 1) if rate else None,
        }

    def told(self, ended: End, source: InputFile) -> str:
        """Returns how a run ended, and what to do next, in a sentence."""
        said, name = HOW_ENDED[ended], source.batch_id[:8]
        if ended == "cap":
            said += f": it may cost {self._costs.refused:,.6f} ({self._costs.cost:,.6f} are spent)"
        bad = [each for each, n in self.plan.counts.items() if n and each not in ("ok", "partial")]
        if bad:
            again = " ".join(f"--status {each}" for each in bad)
            said += f"; not all are good: carpool batch retry {name} {again}, then run it again"
        return said


def duration(seconds: float) -> str:
    """Returns a time for people, such as `2 h 05 min`."""
    minutes, rest_s = divmod(int(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60:,} h {minutes % 60:02} min"
    return f"{minutes} min {rest_s:02} s" if minutes else f"{rest_s} s"


def batches_table(batches: Sequence[Batch]) -> Table:
    """Returns a table of batches."""
    columns = ("batch", "file", "state", "ok", "not ok", "refused", "questions", "changed")
    made = table(*columns, whole=("batch", "changed"))
    for batch in batches:
        ok = batch.counts.get("ok", 0)
        counts = (ok, sum(batch.counts.values()) - ok, batch.file.refused, batch.file.questions)
        cells = (batch.file.name, batch.state, *(f"{count:,}" for count in counts))
        made.add_row(batch.batch_id[:8], *cells, _time(batch.updated_ms))
    return made


def batch_values(batch: Batch) -> dict[str, Any]:
    """Returns what is known of a batch, for people."""
    options = msgspec.to_builtins(batch.options)
    return {
        "batch_id": batch.batch_id,
        "file": batch.file.name,
        "options": ", ".join(f"{name} {value}" for name, value in options.items()) or None,
        "state": batch.state,
        "runner": batch.runner,
        "questions": batch.file.questions,
        "refused": batch.file.refused,
        **batch.counts,
        "retries": "; ".join(", ".join(each.statuses) for each in batch.rounds) or None,
        "began": _time(batch.created_ms),
        "changed": _time(batch.updated_ms),
    }


def values_table(values: Mapping[str, Any]) -> Table:
    """Returns a table of names and values."""
    shown = {
        name.replace("_", " "): f"{value:,.4f}" if isinstance(value, float) else str(value)
        for name, value in values.items()
        if value is not None
    }
    return facts(shown)


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1_000, UTC).strftime("%Y-%m-%d %H:%MZ")

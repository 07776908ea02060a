"""`carpool load`: many questions at a rate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import typer
from rich.console import Console

from carpool.clock import SystemClock
from cli.asking import NprobeOption, TopKOption
from cli.console import facts, output, people, print_json
from cli.exit_codes import FAILED
from cli.options import Beside, JsonOption, spread
from cli.settings import ClientSide
from producers import Client
from producers.arrival_times import bounded, even, poisson
from producers.publish_queries import Publisher
from producers.read_questions import read_questions
from producers.send_load import LoadPlan, LoadProgress, LoadSummary, run_load

PROGRESS_S = 1.0


@spread
def load(
    questions: Path = typer.Argument(
        metavar="FILE", help='Questions: JSON lines {"id", "text"}, gzip or not; or plain text.'
    ),
    rate: float = typer.Option(10.0, "--rate", help="Questions a second."),
    is_even: bool = typer.Option(
        False, "--even", help="At equal distances. Default: a Poisson process."
    ),
    duration: float | None = typer.Option(
        None, "--duration", metavar="SECONDS", help="How long to send."
    ),
    limit: int | None = typer.Option(
        None, "--limit", min=1, help="Most questions to send. Default: each question once."
    ),
    seed: int = typer.Option(0, "--seed", help="The same seed gives the same times."),
    deadline: float | None = typer.Option(
        None, "--deadline", metavar="SECONDS", help="Deadline after the intended time."
    ),
    top_k: int | None = TopKOption,
    nprobe: int | None = NprobeOption,
    as_json: JsonOption = False,
    *,
    beside: Beside,
) -> None:
    """Publish questions at a rate, whether or not earlier ones were answered, and print a summary.

    Each question is sent at its intended time (an open load), with a new id. Questions are repeated
    until --duration or --limit is reached.

    \b
    Example:
      carpool load questions.jsonl.gz --rate 50 --duration 60
    """
    settings = beside.settings()
    rows = read_questions(questions)
    times_us = bounded(
        even(rate) if is_even else poisson(rate, seed),
        duration_s=duration,
        limit=limit if limit is not None or duration is not None else len(rows),
    )
    asyncio.run(_check_brokers(settings))
    timeout_s = settings.client.publish_timeout_ms / 1_000
    publisher = Publisher(settings.kafka, settings.client)
    try:
        summary = run_load(
            publisher,
            rows,
            times_us,
            plan=LoadPlan(top_k=top_k, nprobe=nprobe, deadline_s=deadline),
            clock=SystemClock(),
            on_progress=_progress(people()),
            flush_timeout_s=timeout_s,
        )
    finally:
        publisher.close(timeout_s)
    if as_json:
        print_json(summary)
    else:
        _print_summary(summary)
    if summary.errors or summary.unacknowledged:
        raise typer.Exit(FAILED)


async def _check_brokers(settings: ClientSide) -> None:
    """Raises before the first question when no broker answers or a topic is missing."""
    async with Client(kafka=settings.kafka, settings=settings.client):
        pass


def _progress(console: Console) -> Callable[[LoadProgress], None]:
    """Returns a function that prints the progress about once a second."""
    next_s = time.monotonic() + PROGRESS_S

    def tell(progress: LoadProgress) -> None:
        nonlocal next_s
        if time.monotonic() >= next_s:
            next_s = time.monotonic() + PROGRESS_S
            console.print(
                f"{progress.elapsed_us / 1_000_000:6.0f} s  {progress.sent:,} sent  "
                f"{progress.acknowledged:,} acknowledged "
                f" {progress.errors:,} errors  {progress.behind_us / 1_000:,.1f} ms behind",
                end="\r" if console.is_terminal else "\n",
            )

    return tell


def _print_summary(summary: LoadSummary) -> None:
    first = f", the first: {summary.first_error}" if summary.first_error else ""
    rows = {
        "sent": f"{summary.sent:,} in {summary.duration_s:,.1f} s "
        f"({summary.rate_per_s:,.1f} a second)",
        "acknowledged": f"{summary.acknowledged:,}",
        "errors": f"{summary.errors:,}{first}",
        "unacknowledged": f"{summary.unacknowledged:,}",
        "latest": f"{summary.behind_ms_max:,.1f} ms behind its time",
        "ids": f"{summary.run_id}-0, {summary.run_id}-1, ...",
    }
    output().print(facts(rows))

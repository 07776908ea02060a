"""`carpool load`: many questions at a rate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import typer
from rich.console import Console

from carpool.clock import SystemClock
from carpool.errors import ConfigError
from cli.asking import NprobeOption, TopKOption
from cli.console import facts, output, people, print_json
from cli.exit_codes import FAILED
from cli.options import BesideOption, ConfigOption, JsonOption, SetOption, client_side
from cli.settings import ClientSide
from producers import Client
from producers.arrival_times import ArrivalProcess, bounded, even, poisson, recorded
from producers.publish_queries import Publisher
from producers.read_questions import NpyRows, Question, read_questions, with_vectors
from producers.send_load import LoadPlan, LoadProgress, LoadSummary, SentQuestion, run_load

PROGRESS_S = 1.0


_QUESTIONS = typer.Argument(
    metavar="FILE", help='Questions: JSON lines {"id", "text"}, gzip or not; or plain text.'
)
_RATE = typer.Option(
    10.0, "--rate", help="Questions a second; with --arrivals recorded: how many times as fast."
)
_ARRIVALS = typer.Option(
    "poisson", "--arrivals", help="When questions are sent; recorded: at `at_ms` of the file."
)
_DURATION = typer.Option(None, "--duration", metavar="SECONDS", help="How long to send.")
_LIMIT = typer.Option(
    None, "--limit", min=1, help="Most questions to send. Default: each question once."
)
_SEED = typer.Option(
    0, "--seed", help="Seed of the Poisson process: the same seed gives the same times."
)
_VECTORS = typer.Option(
    None,
    "--vectors",
    metavar="FILE.npy",
    help="A vector for each question, sent instead of its text.",
)
_FINGERPRINT = typer.Option(
    None,
    "--fingerprint",
    metavar="HEX",
    help="With --vectors: fingerprint of their model (`carpool index stats`).",
)
_KEEP_TEXT = typer.Option(
    False, "--keep-text", help="With --vectors: send the text too; the generator needs it."
)
_KEEP_IDS = typer.Option(False, "--keep-ids", help="Publish the file's ids, not new ones.")
_DEADLINE = typer.Option(
    None, "--deadline", metavar="SECONDS", help="Deadline after the intended time."
)
_RECORD = typer.Option(
    None,
    "--record",
    metavar="FILE",
    help="Write id, intended and actual time of each question to this file, as JSON lines.",
)


def load(
    questions: Path = _QUESTIONS,
    rate: float = _RATE,
    arrivals: ArrivalProcess = _ARRIVALS,
    duration: float | None = _DURATION,
    limit: int | None = _LIMIT,
    seed: int = _SEED,
    vectors: Path | None = _VECTORS,
    fingerprint: str | None = _FINGERPRINT,
    keep_text: bool = _KEEP_TEXT,
    keep_ids: bool = _KEEP_IDS,
    deadline: float | None = _DEADLINE,
    top_k: int | None = TopKOption,
    nprobe: int | None = NprobeOption,
    record: Path | None = _RECORD,
    bootstrap: BesideOption = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
) -> None:
    """Publish questions at a rate, whether or not earlier ones were answered, and print a summary.

    Each question is sent at its intended time (an open load). Questions are repeated until
    --duration or --limit is reached.

    \b
    Examples:
      carpool load questions.jsonl.gz --rate 50 --duration 60
      carpool load questions.jsonl --arrivals recorded --rate 2
      carpool load questions.jsonl --vectors questions.npy --fingerprint 1f0c... --rate 200
    """
    settings = client_side(bootstrap, config, assignments)
    if (vectors is None) != (fingerprint is None):
        raise ConfigError(
            "--vectors and --fingerprint belong together: a vector means nothing without its model"
        )
    rows = read_questions(questions)
    if vectors is not None:
        rows = with_vectors(rows, NpyRows(vectors), keep_text=keep_text)
    times_us = bounded(
        _times(arrivals, rows, rate, seed),
        duration_s=duration,
        limit=limit if limit is not None or duration is not None else len(rows),
    )
    plan = LoadPlan(
        embedding_model=fingerprint,
        top_k=top_k,
        nprobe=nprobe,
        deadline_s=deadline,
        keep_ids=keep_ids,
    )
    asyncio.run(_check_brokers(settings))
    summary = _send(settings, rows, times_us, plan, record)
    if as_json:
        print_json(summary)
    else:
        _print_summary(summary)
    if summary.errors or summary.unacknowledged:
        raise typer.Exit(FAILED)


def _send(
    settings: ClientSide,
    rows: Sequence[Question],
    times_us: Iterator[int],
    plan: LoadPlan,
    record: Path | None,
) -> LoadSummary:
    publisher = Publisher(settings.kafka, settings.client)
    timeout_s = settings.client.publish_timeout_ms / 1_000
    try:
        with _recorder(record) as on_sent:
            return run_load(
                publisher,
                rows,
                times_us,
                plan=plan,
                clock=SystemClock(),
                on_sent=on_sent,
                on_progress=_progress(people()),
                flush_timeout_s=timeout_s,
            )
    finally:
        publisher.close(timeout_s)


def _times(
    arrivals: ArrivalProcess, rows: tuple[Question, ...], rate: float, seed: int
) -> Iterator[int]:
    if arrivals == "poisson":
        return poisson(rate, seed)
    if arrivals == "even":
        return even(rate)
    times_ms = [row.at_ms for row in rows if row.at_ms is not None]
    if len(times_ms) != len(rows):
        raise ConfigError(
            f"--arrivals recorded needs `at_ms` on every line; {len(rows) - len(times_ms)} of "
            f"{len(rows)} lack it"
        )
    return recorded(times_ms, rate)


async def _check_brokers(settings: ClientSide) -> None:
    """Raises before the first question when no broker answers or a topic is missing."""
    async with Client(kafka=settings.kafka, settings=settings.client):
        pass


@contextmanager
def _recorder(path: Path | None) -> Iterator[Callable[[SentQuestion], None] | None]:
    """Yields a function that writes each sent question to `path` as a JSON line, if there is one.

    Raises `ConfigError` when the file cannot be written.
    """
    if path is None:
        yield None
        return
    try:
        file = path.open("wb")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; check --record") from error
    with file:

        def write(sent: SentQuestion) -> None:
            file.write(msgspec.json.encode(sent) + b"\n")

        yield write


def _progress(console: Console) -> Callable[[LoadProgress], None]:
    """Returns a function that prints the progress about once a second."""
    next_s = time.monotonic() + PROGRESS_S

    def tell(progress: LoadProgress) -> None:
        nonlocal next_s
        if time.monotonic() >= next_s:
            next_s = time.monotonic() + PROGRESS_S
            end = "\r" if console.is_terminal else "\n"
            console.print(
                f"{progress.elapsed_us / 1_000_000:6.0f} s  {progress.sent:,} sent  "
                f"{progress.acknowledged:,} acknowledged "
                f" {progress.errors:,} errors  {progress.behind_us / 1_000:,.1f} ms behind",
                end=end,
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

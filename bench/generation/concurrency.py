"""`carpool bench concurrency`: does the generator find how many requests a server takes?"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import msgspec
from rich.console import Console
from rich.table import Table

from bench.core.command import reported
from bench.core.machine import data_file
from bench.core.progress import Tell, progress_bars
from bench.core.report import RunStart, finish
from bench.core.stack import LOOPBACK, clean_environment, llm_stand_in
from bench.data.evaluation import CORPUS, TRAFFIC, find_data, read_passages
from bench.generation.backlog import BacklogRound, run_backlog, units_of
from bench.generation.cli import ConcurrencyOptions
from bench.generation.llm_server import LlmAddress, llm_server
from bench.generation.streams import natural_stream
from carpool.loop.stage import Unit
from carpool.testing.llm_text import NAME as STAND_IN_MODEL
from generator.settings import GeneratorSettings, LlmSettings
from schemas.retrieval import Retrieval

INTAKE_RECORDS = 512
"""The backlog. A number that is found is at most half of it."""
FIXED = 8
"""The default of generator.concurrency, with which the number that is found is compared."""
PASSAGES = 3
STAND_IN_PIECES_PER_S = 1.0
STAND_IN_WORDS = 0
STAND_IN_LATENCY_MS = 300
"""Slow, with answers of eight pieces, so that the processors of this machine are not the limit."""
FIND_S, AFTER_S, KNEE_S = 60, 30, 30
WINDOW_S = 10
KNEE_SHARE_MIN = 0.9
FASTER_MIN = 1.25
TTFT_P95_S_MAX = 15.0

Units = Iterator[Unit[Retrieval]]


class KneeResult(msgspec.Struct, frozen=True, kw_only=True):
    """A stand-in with the curve of a large GPU. `at_knee`: the run with a fixed concurrency at the
    knee. `knee_tokens_per_s`: tokens that the stand-in writes at the knee and above, if the machine
    is fast enough. `found_after_s`: the end of the first ten seconds with 0.9 of these tokens.
    `share_after`: the share of these tokens after `FIND_S`.
    """

    knee: int
    at_knee: BacklogRound
    found: BacklogRound
    knee_tokens_per_s: float
    found_after_s: int | None
    share_after: float


class PairedRounds(msgspec.Struct, frozen=True, kw_only=True):
    """A real server, rounds in turns. `ratio`: answers a second, found to fixed; the median."""

    llm_model: str
    fixed: tuple[BacklogRound, ...]
    found: tuple[BacklogRound, ...]
    ratios: tuple[float, ...]
    ratio: float
    ttft_p95_s: float


class ConcurrencyResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run; None where a part was left out."""

    stand_in: KneeResult | None
    server: PairedRounds | None


def run(options: ConcurrencyOptions) -> bool:
    """Runs the benchmark; returns whether every promise was kept. Raises `CarpoolError`."""
    start = RunStart.now()
    data = find_data(options.data)
    paths = (data.corpus_path, data.vectors_path(CORPUS), data.questions_path(TRAFFIC))
    units = units_of(natural_stream(data, passages=PASSAGES), read_passages(data.corpus_path))
    folder = options.work / "concurrency"
    folder.mkdir(parents=True, exist_ok=True)
    with progress_bars() as tell:
        stand_in = measure_knee(units, options.knee, folder, tell) if options.knee else None
        server = None
        if options.rounds:
            with llm_server(options.llm_url, options.llm_model, options.llm, folder) as llm:
                server = measure_server(units, llm, options.rounds, options.seconds, tell)
    results = ConcurrencyResult(stand_in=stand_in, server=server)
    report = start.report(
        "concurrency",
        settings=reported(options),
        promises=promises_of(results),
        results=results,
        data=tuple(map(data_file, paths)),
    )
    return finish(report, options.json_file, lambda console: print_concurrency(console, results))


def measure_knee(units: Units, knee: int, folder: Path, tell: Tell) -> KneeResult:
    """Measures the stand-in with the knee as a fixed number, and with concurrency 0. Blocks."""
    with _stand_in(knee, folder) as url:
        # As light as can be, for the same reason.
        llm = LlmSettings(base_url=url, model=STAND_IN_MODEL, prompts="text")
        fixed = GeneratorSettings(
            concurrency=knee, intake_records_max=INTAKE_RECORDS, partials=False
        )
        to_find = GeneratorSettings(
            concurrency=0, intake_records_max=INTAKE_RECORDS, partials=False
        )
        tell("stand-in", 0, 2)
        at_knee = run_backlog(units, fixed, llm, seconds=KNEE_S)
        tell("stand-in", 1, 2)
        found = run_backlog(units, to_find, llm, seconds=FIND_S + AFTER_S)
        tell("stand-in", 2, 2)
    return knee_result(knee, at_knee, found)


def knee_result(knee: int, at_knee: BacklogRound, found: BacklogRound) -> KneeResult:
    """Compares the tokens with those at the knee."""
    best = knee * STAND_IN_PIECES_PER_S
    reached = (
        end
        for end in range(WINDOW_S, found.seconds + 1)
        if found.tokens_per_s(end - WINDOW_S, end) >= KNEE_SHARE_MIN * best
    )
    return KneeResult(
        knee=knee,
        at_knee=at_knee,
        found=found,
        knee_tokens_per_s=round(best, 1),
        found_after_s=next(reached, None),
        share_after=round(found.tokens_per_s(FIND_S, found.seconds) / best, 3),
    )


def measure_server(
    units: Units, llm: LlmAddress, rounds: int, seconds: int, tell: Tell
) -> PairedRounds:
    """Measures rounds of both kinds in turns, each with questions of its own. Blocks."""
    address = LlmSettings(base_url=llm.url, model=llm.model, sends_priority=llm.is_own)
    passages_max = llm.passages_max or PASSAGES
    done: dict[int, list[BacklogRound]] = {FIXED: [], 0: []}
    for number, concurrency in enumerate((FIXED, 0) * rounds):
        tell("rounds", number, 2 * rounds)
        settings = GeneratorSettings(
            concurrency=concurrency,
            intake_records_max=INTAKE_RECORDS,
            passages_max=passages_max,
        )
        done[concurrency].append(run_backlog(units, settings, address, seconds=seconds))
    return paired(llm.model, done[FIXED], done[0])


def paired(
    model: str, fixed: Sequence[BacklogRound], found: Sequence[BacklogRound]
) -> PairedRounds:
    """Compares rounds that were measured one after the other."""
    ratios = [
        round(of.answers_per_s / max(to.answers_per_s, 1e-9), 3)
        for of, to in zip(found, fixed, strict=True)
    ]
    return PairedRounds(
        llm_model=model,
        fixed=tuple(fixed),
        found=tuple(found),
        ratios=tuple(ratios),
        ratio=round(median(ratios), 3),
        ttft_p95_s=max(one.ttft_p95_s for one in found),
    )


def promises_of(result: ConcurrencyResult) -> dict[str, bool]:
    """Returns each promise and whether it was kept."""
    promises = {}
    if (knee := result.stand_in) is not None:
        name = f"stand-in: {KNEE_SHARE_MIN} of the knee's tokens a second within {FIND_S} s"
        promises[name] = knee.found_after_s is not None and knee.found_after_s <= FIND_S
        promises[f"stand-in: {KNEE_SHARE_MIN} of them after that"] = (
            knee.share_after >= KNEE_SHARE_MIN
        )
    if (server := result.server) is not None:
        name = f"at least {FASTER_MIN} times the answers a second of concurrency {FIXED}"
        promises[name] = server.ratio >= FASTER_MIN
        promises[f"p95 time to first token within {TTFT_P95_S_MAX:g} s"] = (
            server.ttft_p95_s <= TTFT_P95_S_MAX
        )
    return promises


def print_concurrency(console: Console, result: ConcurrencyResult) -> None:
    """Prints one row for each round."""
    table = Table(
        *("server", "requests at once", "at the end", "answers a second", "tokens a second"),
        *("TTFT p50, s", "TTFT p95, s"),
        title="Concurrency",
    )
    rounds: list[tuple[str, BacklogRound]] = []
    if (knee := result.stand_in) is not None:
        rounds += [("stand-in", knee.at_knee), ("stand-in", knee.found)]
        console.print(
            f"stand-in with knee {knee.knee}: 0.9 of its tokens after {knee.found_after_s} s; "
            f"{knee.share_after:.0%} of them after {FIND_S} s"
        )
    if (server := result.server) is not None:
        pairs = zip(server.fixed, server.found, strict=True)
        rounds += [(server.llm_model, one) for one in itertools.chain.from_iterable(pairs)]
        console.print(f"answers a second, found to fixed: {server.ratio} ({server.ratios})")
    for name, one in rounds:
        tokens = f"{one.tokens_per_s(0, one.seconds):.1f}"
        texts = (f"{one.answers_per_s:.2f}", tokens, f"{one.ttft_p50_s:.2f}")
        limit = str(one.limits[-1])
        table.add_row(name, one.concurrency, limit, *texts, f"{one.ttft_p95_s:.2f}")
    console.print(table)


@contextmanager
def _stand_in(knee: int, folder: Path) -> Iterator[str]:
    """Yields the URL of a stand-in in a process of its own."""
    options = (
        *("--knee", str(knee), "--tokens-per-second", str(STAND_IN_PIECES_PER_S)),
        *("--more-words", str(STAND_IN_WORDS), "--latency-ms", str(STAND_IN_LATENCY_MS)),
    )
    process = llm_stand_in("stand-in", clean_environment(), folder, options)
    process.start()
    try:
        process.wait_ready()
        yield f"http://{LOOPBACK}:{process.port}/v1"
    finally:
        process.stop()

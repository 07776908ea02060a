"""What `carpool bench simulator` does: real and simulated runs, their table and report."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from bench.core.progress import progress_bars
from bench.core.report import RunStart, finish
from bench.data.clusters import open_clusters
from bench.data.evaluation import EvaluationData, Float32, find_data
from bench.data.index import BenchIndex, corpus_index
from bench.data.trace import read_questions
from bench.simulator.agreement import OFF_MAX, Comparison, SimulatorAgreement, compare, is_close
from carpool.disk.index import OpenIndex
from carpool.embedding import EmbeddingSettings
from carpool.errors import ConfigError


class SimulatorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared. `index`: None for one of the evaluation data, built under `work`."""

    compared: tuple[Comparison, ...]
    index: Path | None
    nlist: int
    questions: int
    seed: int
    work: Path


def simulator(data: Path | None, options: SimulatorOptions, json_file: Path | None) -> bool:
    """Compares real runs and simulated ones; returns whether all agree. Blocks.

    Raises `ConfigError` without data or index.
    """
    start = RunStart.now()
    found = find_data(data)
    console = Console(stderr=True)
    index_dir = options.index or (options.work / f"index-{options.nlist}-{options.seed}").resolve()
    if options.index is None:
        corpus_index(
            found,
            index_dir=index_dir,
            nlist=options.nlist,
            seed=options.seed,
            embedding=EmbeddingSettings(),
            note=console.print,
        )
    index = open_clusters(index_dir)
    vectors = _questions(found, index, options)
    with threadpool_limits(limits=1, user_api="blas"), progress_bars(console) as tell:
        agreements = [compare(index, vectors, each, tell) for each in options.compared]
    report = start.report(
        "simulator",
        settings=options,
        promises={
            "the simulator reads the bytes of every real run": all(
                each.bytes_are_equal for each in agreements
            ),
            f"mean, p50 and p99 are within {OFF_MAX:.0%} of the real ones": all(
                each.latencies_agree for each in agreements
            ),
        },
        results=agreements,
        index=BenchIndex(dir=index.dir, manifest=index.manifest).facts,
    )

    def show(output: Console) -> None:
        for each in agreements:
            output.print(agreement_table(each))
        output.print(
            "A query's real latency is its median over the rounds; lowest and highest are of whole "
            "rounds.",
            style="dim",
        )

    return finish(report, json_file, show)


def agreement_table(found: SimulatorAgreement) -> Table:
    """Returns a line for bytes and one for each figure of the latencies."""
    table = Table(
        "",
        "real",
        "lowest",
        "highest",
        "simulated",
        "ratio",
        "holds",
        title=f"windows of {found.compared.window}",
        title_justify="left",
    )
    real_bytes = statistics.median(found.real_bytes)
    table.add_row(
        "bytes",
        *(f"{int(n):,}" for n in (real_bytes, min(found.real_bytes), max(found.real_bytes))),
        f"{found.simulated_bytes:,}",
        "equal" if found.bytes_are_equal else f"{found.simulated_bytes / real_bytes:.3f}",
        _yes(found.bytes_are_equal),
    )
    for name, ratio in found.ratios.items():
        rounds = [getattr(round_ms, name) for round_ms in found.rounds_ms]
        real, simulated = getattr(found.real_ms, name), getattr(found.simulated_ms, name)
        cells = (f"{ms:,.1f}" for ms in (real, min(rounds), max(rounds), simulated))
        table.add_row(f"{name} ms", *cells, f"{ratio:.2f}", _yes(is_close(ratio)))
    return table


def _questions(data: EvaluationData, index: OpenIndex, options: SimulatorOptions) -> Float32:
    found = read_questions(data, options.seed)
    manifest = index.manifest
    if found.shape[1] != manifest.dimension:
        raise ConfigError(
            f"the questions of the data have vectors of dimension {found.shape[1]}, and "
            f"{index.dir} is of dimension {manifest.dimension}: another model made them. Name an "
            "index that was built with the model of the data"
        )
    if len(found) < options.questions:
        raise ConfigError(
            f"the data have {len(found)} distinct questions, and --questions asks for "
            f"{options.questions}; ask for fewer"
        )
    _check_nprobe(index, options.compared)
    return found[: options.questions]


def _check_nprobe(index: OpenIndex, compared: Sequence[Comparison]) -> None:
    nprobe = max((each.nprobe for each in compared), default=0)
    if nprobe > index.manifest.nlist:
        raise ConfigError(
            f"--nprobe {nprobe} is more than the {index.manifest.nlist} clusters of {index.dir}; "
            "ask for fewer"
        )


def _yes(holds: bool) -> str:
    return "yes" if holds else "NO"

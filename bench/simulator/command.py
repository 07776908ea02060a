"""What `carpool bench simulator` does: real and simulated runs, their table and report."""

from __future__ import annotations

import statistics

from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from bench.core.command import reported
from bench.core.progress import progress_bars
from bench.core.report import RunStart, finish
from bench.data.clusters import open_clusters
from bench.data.evaluation import Float32, find_data
from bench.data.index import BenchIndex, corpus_index
from bench.data.trace import read_questions
from bench.simulator.agreement import OFF_MAX, Comparison, SimulatorAgreement, compare, is_close
from bench.simulator.cli import SimulatorOptions
from carpool.disk.index import OpenIndex
from carpool.embedding import EmbeddingSettings
from carpool.errors import ConfigError
from carpool.terminal import TerminalConsole


def compare_with_simulator(options: SimulatorOptions) -> bool:
    """Compares real runs and simulated ones; returns whether all agree. Blocks.

    Raises `ConfigError` without data or index, and for options that do not fit them.
    """
    start = RunStart.now()
    compared = [
        Comparison(
            nprobe=options.nprobe,
            window=size,
            budget_share=options.budget_share,
            rounds=options.rounds,
        )
        for size in options.window
    ]
    data = find_data(options.data)
    console = TerminalConsole(stderr=True)
    index_dir = options.index or (options.work / f"index-{options.nlist}-{options.seed}").resolve()
    if options.index is None:
        corpus_index(
            data,
            index_dir=index_dir,
            nlist=options.nlist,
            seed=options.seed,
            embedding=EmbeddingSettings(),
            note=console.print,
        )
    index = open_clusters(index_dir)
    vectors = read_questions(data, options.seed)
    _check_questions(vectors, index, options, max(each.questions_min for each in compared))
    vectors = vectors[: options.questions]
    with threadpool_limits(limits=1, user_api="blas"), progress_bars(console) as tell:
        agreements = [compare(index, vectors, each, tell) for each in compared]
    report = start.report(
        "simulator",
        settings=reported(options),
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

    return finish(report, options.json_file, show)


def agreement_table(found: SimulatorAgreement) -> Table:
    """Returns a line for bytes and one for each figure of the latencies."""
    title = f"windows of {found.compared.window}"
    table = Table("", "real", "simulated", "ratio", "holds", title=title, title_justify="left")
    real_bytes = statistics.median(found.real_bytes)
    table.add_row(
        "bytes",
        f"{int(real_bytes):,}",
        f"{found.simulated_bytes:,}",
        "equal" if found.bytes_are_equal else f"{found.simulated_bytes / real_bytes:.3f}",
        _yes(found.bytes_are_equal),
    )
    for name, ratio in found.ratios.items():
        cells = (f"{getattr(ms, name):,.1f}" for ms in (found.real_ms, found.simulated_ms))
        table.add_row(f"{name} ms", *cells, f"{ratio:.2f}", _yes(is_close(ratio)))
    return table


def _check_questions(
    vectors: Float32, index: OpenIndex, options: SimulatorOptions, questions_min: int
) -> None:
    """Raises `ConfigError` where questions or probes do not fit the index or the windows."""
    manifest = index.manifest
    if questions_min > options.questions:
        raise ConfigError(
            f"--questions {options.questions} are too few for windows of {max(options.window)}: a "
            "full window must be left to measure costs. Ask for "
            f"{questions_min} or more"
        )
    if vectors.shape[1] != manifest.dimension:
        raise ConfigError(
            f"the questions of the data have vectors of dimension {vectors.shape[1]}, and "
            f"{index.dir} is of dimension {manifest.dimension}: another model made them. Name an "
            "index that was built with the model of the data"
        )
    if len(vectors) < options.questions:
        raise ConfigError(
            f"the data have {len(vectors)} distinct questions, and --questions asks for "
            f"{options.questions}; ask for fewer"
        )
    if options.nprobe > manifest.nlist:
        raise ConfigError(
            f"--nprobe {options.nprobe} is more than the {manifest.nlist} clusters of "
            f"{index.dir}; ask for fewer"
        )


def _yes(holds: bool) -> str:
    return "yes" if holds else "NO"

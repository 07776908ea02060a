"""What `carpool bench policies` and `carpool bench simulator` do: data in, tables and JSON out."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from bench.data import CORPUS, find_data, read_vectors
from bench.machine import this_machine, this_revision
from bench.policies import Row, study
from bench.search.dataset import choose_questions, open_view
from bench.simulator.agreement import Agreement, Question, compare
from bench.simulator.shelf import shelf_of, write_shelf
from bench.simulator.trace import cluster, question_trace, read_questions
from bench.simulator.ways import WAYS

LATENCIES = ("mean", "p50", "p99")


def policies(
    data: Path | None,
    *,
    nlist: int,
    nprobe: int,
    window: int,
    shares: tuple[float, ...],
    seeds: int,
    json_file: Path | None,
) -> None:
    """Studies the policies, prints a table of medians and ranges over the seeds. Raises `ConfigError` without data."""
    found = find_data(data)
    rows: list[Row] = []
    for seed in range(seeds):
        trace = question_trace(found, nlist=nlist, nprobe=nprobe, window=window, seed=seed)
        for share in shares:
            rows.extend(study(trace, share))
    table = Table("bytes read, over the static oracle's", *(f"budget {share:.0%}" for share in shares))
    for name in dict.fromkeys(row.name for row in rows):
        table.add_row(name, *(_range(rows, name, share) for share in shares))
    _show(table, json_file, {"nlist": nlist, "nprobe": nprobe, "window": window, "seeds": seeds, "rows": rows})


def _range(rows: list[Row], name: str, share: float) -> str:
    ratios = [row.to_static for row in rows if (row.name, row.budget_share) == (name, share)]
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})"


def simulator(
    data: Path | None,
    *,
    index: Path | None,
    ways: Sequence[str],
    windows: Sequence[int],
    nlist: int,
    nprobe: int,
    questions: int,
    budget_share: float,
    threads: int,
    repeats: int,
    seed: int,
    work: Path,
    json_file: Path | None,
) -> bool:
    """Compares real runs and simulated ones; returns whether all agree. Raises `ConfigError` without data. Blocks."""
    found = find_data(data)
    asked = [
        Question(
            way=WAYS[way],
            nprobe=nprobe,
            window=window,
            budget_share=budget_share,
            threads=threads,
            repeats=repeats,
        )
        for window in windows
        for way in ways
    ]
    work.mkdir(parents=True, exist_ok=True)
    agreements = []
    with threadpool_limits(limits=1, user_api="blas"), TemporaryDirectory(dir=work, prefix="shelf-") as folder:
        if index is not None:
            shelf = shelf_of(open_view(index))
        else:
            vectors = read_vectors(found.vectors_path(CORPUS))
            shelf = write_shelf(Path(folder), vectors, cluster(vectors, nlist=nlist, seed=seed))
        vectors_asked = choose_questions(read_questions(found, seed), shelf.layout.dimension, questions, seed).vectors
        for question in asked:
            agreements.append(compare(shelf, vectors_asked[:questions], question))
    table = Table("", "bytes", *LATENCIES, "queries within 25 %", "CPU of others")
    for agreement in agreements:
        table.add_row(
            f"{agreement.asked.way.name}, windows of {agreement.asked.window}",
            _bytes(agreement),
            *(_latency(agreement, name) for name in LATENCIES),
            f"{agreement.within_25:.0%}",
            f"{max(agreement.others):.0%}",
        )
    rows = [{"agreement": found, "ratios": found.latency_ratios, "agrees": found.agrees} for found in agreements]
    where = {"rows": sum(extent.row_count for extent in shelf.extents), "nlist": len(shelf.extents), "seed": seed}
    _show(table, json_file, where | {"comparisons": rows})
    return all(agreement.agrees for agreement in agreements)


def _bytes(agreement: Agreement) -> str:
    if agreement.bytes_are_equal:
        return f"{agreement.simulated_bytes:,}, equal"
    low, high = min(agreement.real_bytes), max(agreement.real_bytes)
    return f"{low:,} to {high:,}, simulated {agreement.simulated_bytes:,}"


def _latency(agreement: Agreement, name: str) -> str:
    real_ms, simulated_ms = getattr(agreement.real_ms, name), getattr(agreement.simulated_ms, name)
    return f"{real_ms:.1f} ms, x {simulated_ms / real_ms:.2f}"


def _show(table: Table, json_file: Path | None, figures: dict[str, Any]) -> None:
    if json_file is not None:
        figures = {"machine": this_machine(), "revision": this_revision()} | figures
        content = msgspec.json.format(msgspec.json.encode(figures)) + b"\n"
        if str(json_file) == "-":
            sys.stdout.buffer.write(content)
        else:
            json_file.write_bytes(content)
    Console(file=sys.stderr if str(json_file) == "-" else sys.stdout).print(table)

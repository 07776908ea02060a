"""What `carpool bench policies` and `carpool bench simulator` do: data in, tables and JSON out."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from bench.data import CORPUS, find_data, read_vectors
from bench.machine import this_machine, this_revision
from bench.policies import Row, study
from bench.simulator.agreement import Question, compare
from bench.simulator.trace import cluster, question_trace, read_questions
from searcher.cache.policies import PolicyName

LATENCY_OFF_MAX = 0.25


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
    nlist: int,
    nprobe: int,
    window: int,
    questions: int,
    budget_share: float,
    policy: PolicyName,
    threads: int,
    work: Path,
    json_file: Path | None,
) -> bool:
    """Compares a real run and a simulated one; returns whether they agree. Raises `ConfigError` without data. Blocks."""
    found = find_data(data)
    vectors = read_vectors(found.vectors_path(CORPUS))
    asked = Question(nprobe=nprobe, window=window, budget_share=budget_share, policy=policy, threads=threads)
    work.mkdir(parents=True, exist_ok=True)
    with threadpool_limits(limits=1, user_api="blas"):
        clustered = cluster(vectors, nlist=nlist, seed=0)
        agreement = compare(vectors, clustered, read_questions(found, 0)[:questions], asked, work)
    table = Table("", "real", "simulated")
    table.add_row("bytes read", f"{agreement.real_bytes:,}", f"{agreement.simulated_bytes:,}")
    for name in agreement.latency_ratios:
        table.add_row(
            f"latency, {name}, ms",
            f"{getattr(agreement.real_ms, name):.2f}",
            f"{getattr(agreement.simulated_ms, name):.2f}",
        )
    table.add_row("queries within 25 % of each other", "", f"{agreement.within_25:.0%}")
    _show(table, json_file, {"nlist": nlist, "asked": asked, "agreement": agreement})
    is_close = all(abs(ratio - 1) <= LATENCY_OFF_MAX for ratio in agreement.latency_ratios.values())
    return is_close and agreement.real_bytes == agreement.simulated_bytes


def _show(table: Table, json_file: Path | None, figures: dict[str, Any]) -> None:
    if json_file is not None:
        figures = {"machine": this_machine(), "revision": this_revision()} | figures
        content = msgspec.json.format(msgspec.json.encode(figures)) + b"\n"
        if str(json_file) == "-":
            sys.stdout.buffer.write(content)
        else:
            json_file.write_bytes(content)
    Console(file=sys.stderr if str(json_file) == "-" else sys.stdout).print(table)

"""What `carpool bench policies` and `carpool bench simulator` do: data in, tables and JSON out."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from bench.core.machine import program, this_machine, this_revision
from bench.data.evaluation import EvaluationData, Float32, find_data
from bench.data.index import corpus_index
from bench.micro.policies import Row, study
from bench.simulator.agreement import Question, compare
from bench.simulator.report import agreement_table, remarks
from bench.simulator.trace import question_trace, read_questions
from carpool.disk.index import OpenIndex, open_index
from carpool.embedding import EmbeddingSettings
from carpool.errors import ConfigError


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
    """Studies the policies, prints a table of medians and ranges over the seeds. Raises
    `ConfigError` without data.
    """
    found = find_data(data)
    rows: list[Row] = []
    for seed in range(seeds):
        trace = question_trace(found, nlist=nlist, nprobe=nprobe, window=window, seed=seed)
        for share in shares:
            rows.extend(study(trace, share))
    table = Table(
        "bytes read, over the static oracle's", *(f"budget {share:.0%}" for share in shares)
    )
    for name in dict.fromkeys(row.name for row in rows):
        table.add_row(name, *(_range(rows, name, share) for share in shares))
    _show(
        [table],
        json_file,
        {"nlist": nlist, "nprobe": nprobe, "window": window, "seeds": seeds, "rows": rows},
    )


def _range(rows: list[Row], name: str, share: float) -> str:
    ratios = [row.to_static for row in rows if (row.name, row.budget_share) == (name, share)]
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})"


def simulator(
    data: Path | None,
    *,
    index_dir: Path | None,
    asked: Sequence[Question],
    nlist: int,
    questions: int,
    seed: int,
    work: Path,
    json_file: Path | None,
) -> bool:
    """Compares real runs and simulated ones; returns whether all agree. Blocks. Raises
    `ConfigError` without data or index.
    """
    found = find_data(data)
    told = Console(stderr=True)
    if index_dir is None:
        index_dir = (work / f"index-{nlist}-{seed}").resolve()
        corpus_index(
            found,
            index_dir=index_dir,
            nlist=nlist,
            seed=seed,
            embedding=EmbeddingSettings(),
            note=told.print,
        )
    index = open_index(index_dir)
    index.close()  # the documents are not needed
    vectors = _questions(found, index, questions, seed)
    _check_nprobe(index, asked)
    agreements = []
    with threadpool_limits(limits=1, user_api="blas"):
        for question in asked:
            agreements.append(compare(index, vectors, question, partial(_tell, told, question)))
    rows = [
        {"agreement": agreement, "ratios": agreement.latency_ratios, "agrees": agreement.agrees}
        for agreement in agreements
    ]
    where = {
        "command": program(),
        "index": {
            "name": index.dir.name,
            "version": index.manifest.index_version,
            "rows": index.manifest.row_count,
        },
        "nlist": index.manifest.nlist,
        "questions": questions,
        "seed": seed,
    }
    _show(
        [*map(agreement_table, agreements)],
        json_file,
        where | {"comparisons": rows},
        remarks(agreements),
    )
    return all(agreement.agrees for agreement in agreements)


def _tell(console: Console, question: Question, what: str) -> None:
    console.print(f"{question.way.name}, windows of {question.window}: {what}", highlight=False)


def _questions(data: EvaluationData, index: OpenIndex, count: int, seed: int) -> Float32:
    found = read_questions(data, seed)
    dimension = index.manifest.dimension
    if found.shape[1] != dimension:
        raise ConfigError(
            f"the questions of the data have vectors of dimension {found.shape[1]}, and "
            f"{index.dir} is of dimension {dimension}: they were made by another model. Name an "
            "index that was built with the model of the data"
        )
    if len(found) < count:
        raise ConfigError(
            f"the data have {len(found)} distinct questions, and --questions asks for {count}; ask "
            "for fewer"
        )
    return found[:count]


def _check_nprobe(index: OpenIndex, asked: Sequence[Question]) -> None:
    if asked and (nprobe := max(question.nprobe for question in asked)) > index.manifest.nlist:
        raise ConfigError(
            f"--nprobe {nprobe} is more than the {index.manifest.nlist} clusters of {index.dir}; "
            "ask for fewer"
        )


def _show(
    tables: Sequence[Table],
    json_file: Path | None,
    figures: dict[str, Any],
    remarks: Iterable[str] = (),
) -> None:
    if json_file is not None:
        figures = {"machine": this_machine(), "revision": this_revision()} | figures
        content = msgspec.json.format(msgspec.json.encode(figures)) + b"\n"
        if str(json_file) == "-":
            sys.stdout.buffer.write(content)
        else:
            json_file.write_bytes(content)
    console = Console(file=sys.stderr if str(json_file) == "-" else sys.stdout)
    for table in tables:
        console.print(table)
    for remark in remarks:
        console.print(remark, highlight=False)

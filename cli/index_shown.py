"""Prints what the commands of `carpool index` found."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from carpool.disk.manifest import RecallTable
from cli.console import facts, output, print_json
from indexer.build import BuildReport, describe_problems
from indexer.stats import IndexStats, index_stats
from indexer.verify import VerifyReport

PROBLEMS_SHOWN = 50


def print_verdict(index_dir: Path, report: VerifyReport) -> None:
    console, problems = output(), report.problems
    if not problems:
        what = f"{report.rows:,} rows in {report.clusters:,} clusters"
        what = f": {what}; every checksum and count is right"
        console.print(Text("whole", "green") + Text(what, "default"))
        return
    count = f"{len(problems)} problem{'s' * (len(problems) > 1)}"
    advice = f": {count} in {index_dir}; restore it from a copy or build it again"
    console.print(Text("damaged", "red") + Text(advice, "default"))
    for problem in problems[:PROBLEMS_SHOWN]:
        console.print(f"  {problem}", soft_wrap=True)
    if len(problems) > PROBLEMS_SHOWN:
        console.print(f"  and {len(problems) - PROBLEMS_SHOWN} more (--json lists all)")


def print_build(report: BuildReport, index_dir: Path, console: Console, *, as_json: bool) -> None:
    if report.documents.problem_count:
        console.print(describe_problems(report.documents), style="yellow")
        console.print("They were skipped; --strict refuses a corpus that has any.", style="yellow")
    for note, count in report.documents.notes.items():
        console.print(f"{count:,} passage{'s' * (count > 1)}: {note}")
    stats = index_stats(index_dir)
    if as_json:
        print_json(
            {
                "index": stats,
                "notes": report.documents.notes,
                "bad_lines": report.documents.problem_count,
                "problems": report.documents.problems,
            }
        )
    else:
        print_stats(index_dir, stats)


def print_stats(index_dir: Path, found: IndexStats) -> None:
    spread = found.cluster_rows
    rows = {
        "version": f"{found.index_version}, format {found.format}",
        "passages": f"{found.row_count:,} of dimension {found.dimension}, {found.vector_dtype}",
        "codes": ", ".join(found.codes) or "none: queries are searched exactly",
        "scanned here by": found.kernel,
        "model": f"{found.embedding_model_name} ({found.embedding_model})",
        "clusters": f"{found.nlist:,} (centroids {found.centroids_fingerprint})",
        "probed by default": "all"
        if found.nprobe_default == found.nlist
        else f"{found.nprobe_default} clusters a query, "
        + ("measured" if found.is_measured else "by a formula"),
        "passages a cluster": f"min {spread.min:,}, median {spread.p50:,}, p95 {spread.p95:,}, "
        f"max {spread.max:,}; skew {found.cluster_skew}",
    }
    if found.far_rows:
        share = found.far_rows / found.row_count
        rows["far from all centroids"] = f"{found.far_rows:,} passages ({share:.1%})"
    if found.base is not None:
        rows["base"] = f"{found.base.name}, after {found.base.predecessor or 'none'}"
    rows |= {name: f"{size_bytes:,} bytes" for name, size_bytes in found.files_bytes.items()}
    rows["together"] = f"{found.size_bytes:,} bytes"
    output().print(facts(rows, title=str(index_dir)))


def print_recall(index_dir: Path, found: RecallTable) -> None:
    table = Table(title=f"{index_dir}: {found.questions:,} questions, best {found.top_k} passages")
    for column in ("target", "recall", "nprobe", "rows read", "KB read", "CPU ms"):
        table.add_column(column, justify="right")
    for row in found.rows:
        table.add_row(
            f"{row.target:g}",
            f"{row.recall:.3f}",
            f"{row.nprobe:,}",
            f"{row.rows_read:g}",
            f"{row.read_bytes / 1000:,.0f}",
            "-" if row.cpu_us is None else f"{row.cpu_us / 1000:.1f}",
        )
    output().print(table)

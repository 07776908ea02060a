"""Prints what the commands of `carpool index` found."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from carpool.disk.manifest import RecallTable
from cli.console import facts, show_result
from indexer.build import BuildReport, describe_problems
from indexer.stats import IndexStats, index_stats
from indexer.verify import VerifyReport

PROBLEMS_SHOWN = 50


def verdict(index_dir: Path, report: VerifyReport) -> Text:
    problems = report.problems
    if not problems:
        what = f"{report.rows:,} rows in {report.clusters:,} clusters"
        what = f": {what}; every checksum and count is right"
        return Text("whole", "green") + Text(what, "default")
    count = f"{len(problems)} problem{'s' * (len(problems) > 1)}"
    lines = [f": {count} in {index_dir}; restore it from a copy or build it again"]
    lines += [f"  {problem}" for problem in problems[:PROBLEMS_SHOWN]]
    if (more := len(problems) - PROBLEMS_SHOWN) > 0:
        lines.append(f"  and {more} more (--json lists all)")
    return Text("damaged", "red") + Text("\n".join(lines), "default")


def print_build(report: BuildReport, index_dir: Path, console: Console, *, as_json: bool) -> None:
    if report.documents.problem_count:
        console.print(describe_problems(report.documents), style="yellow")
        console.print("They were skipped; --strict refuses a corpus that has any.", style="yellow")
    for note, count in report.documents.notes.items():
        console.print(f"{count:,} passage{'s' * (count > 1)}: {note}")
    stats = index_stats(index_dir)
    found = {
        "index": stats,
        "notes": report.documents.notes,
        "bad_lines": report.documents.problem_count,
        "problems": report.documents.problems,
    }
    show_result(found, stats_table(index_dir, stats), as_json=as_json)


def stats_table(index_dir: Path, found: IndexStats) -> Table:
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
    return facts(rows, title=str(index_dir))


def recall_table(index_dir: Path, found: RecallTable) -> Table:
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
    return table

"""Tables of `carpool bench claims` and `carpool bench traffic`."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from bench.core.spread import Spread
from bench.services.claims import ClaimsResult
from bench.services.traffic import Footprint, TrafficResult

MIB = 1024 * 1024


def print_claims(console: Console, result: ClaimsResult) -> None:
    """Prints what came of the claims."""
    ids, books = result.ids, result.retrievals
    table = Table(
        "claims",
        "retrieved",
        "missing",
        "duplicates",
        "ids equal",
        "equal scores",
        "different",
        title="Claims",
    )
    table.add_row(
        *map(str, (books.published, books.answered, books.missing, books.duplicates)),
        *map(str, (ids.same, ids.tied, ids.different)),
    )
    console.print(table)
    for example in ids.examples:
        console.print(f"  [red]{example}[/]")
    shares = Table("search", "nprobe", "evidence in the first five", title="Evidence")
    shares.add_row("services", str(result.nprobe), f"{result.evidence_services:.1%}", style="bold")
    shares.add_row("exact, in memory", "-", f"{result.evidence_exact:.1%}")
    for nprobe, share in result.evidence_by_nprobe.items():
        shares.add_row("FAISS IVF-Flat, in memory", str(nprobe), f"{share:.1%}")
    console.print(shares)
    made = result.generated
    if made is not None:
        answers = Table(
            "asked",
            "by status",
            "valid citations",
            "first token ms p50",
            "total ms p50",
            "model",
            title="Answers",
        )
        statuses = ", ".join(f"{status} {count}" for status, count in made.by_status.items())
        first, total = made.time_to_first_token_ms, made.total_ms
        answers.add_row(
            str(made.books.published),
            statuses,
            f"{made.valid_citations} ({made.valid_citations_share:.0%})",
            f"{first.p50:.0f}" if first else "-",
            f"{total.p50:.0f}" if total else "-",
            ", ".join(made.models),
        )
        console.print(answers)
        for error in made.errors:
            console.print(f"  [yellow]{error}[/]")


def print_traffic(
    console: Console, results: list[TrafficResult], footprint: Footprint | None, budget_bytes: int
) -> None:
    """Prints what came of the runs side by side."""
    table = Table("stage, ms", title="Times of every stage")
    for result in results:
        table.add_column(f"{result.kind} p50", justify="right")
        table.add_column("p99", justify="right")
    stages = list(dict.fromkeys(stage for result in results for stage in result.stages_ms))
    for stage in stages:
        cells = [cell for result in results for cell in _percentiles(result.stages_ms.get(stage))]
        table.add_row(stage, *cells, style="bold" if stage == "total" else "")
    console.print(table)
    facts = Table("", *(result.kind for result in results), title="Cache, bytes, windows, memory")
    for name, cells in traffic_facts(results).items():
        facts.add_row(name, *cells)
    console.print(facts)
    if footprint is not None:
        at_rest, in_use = footprint.at_rest.anonymous_bytes, footprint.beside_budget_bytes
        console.print(
            f"searcher: a budget of {budget_bytes / MIB:.1f} MiB, and beside it "
            f"{at_rest / MIB:.1f} MiB at rest and {in_use / MIB:.1f} MiB at most with this "
            "traffic, as measured on an index with next to nothing in it"
        )


def traffic_facts(results: list[TrafficResult]) -> dict[str, list[str]]:
    """Returns the rows of the second table: a name, and a cell a run."""
    rows: dict[str, list[str]] = {}
    for result in results:
        counters, memory, load, found = result.counters, result.memory, result.load, result.windows
        cells = {
            "questions": f"{result.retrievals.published}",
            "offered / retrieved a second": f"{load.rate_per_s:.1f} / {result.retrieved_per_s:.1f}",
            "retrieved / missing / twice": f"{result.retrievals.answered} / "
            f"{result.retrievals.missing} / {result.retrievals.duplicates}",
            "clusters found in RAM": f"{result.cache_hit_share:.1%} of {result.cache.requests:,}",
            "clusters read for a query": f"{result.cache.ssd:,}",
            "read ahead: used / late / wasted": f"{counters.prefetches_used} / "
            f"{counters.prefetches_late} / {counters.prefetches_wasted}",
            "bytes read a query": f"{result.bytes_a_query:,.0f}",
            "  of these because it lacked them": f"{result.demand_bytes_a_query:,.0f}",
            "window, queries p50 / p99": _short(found.window_queries) if found else "-",
            "group, queries p50 / p99": _short(found.group_queries) if found else "-",
            "searcher, peak anonymous MiB": f"{memory['searcher'].anonymous_bytes_max / MIB:.1f}",
            "grouper, peak resident MiB": f"{memory['grouper'].resident_bytes_max / MIB:.1f}",
        }
        for name, cell in cells.items():
            rows.setdefault(name, []).append(cell)
    return rows


def _percentiles(spread: Spread | None) -> tuple[str, str]:
    return ("-", "-") if spread is None else (f"{spread.p50:,.1f}", f"{spread.p99:,.1f}")


def _short(spread: Spread) -> str:
    return f"{spread.p50:g} / {spread.p99:g}"

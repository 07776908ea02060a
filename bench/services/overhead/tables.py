"""What `carpool bench overhead` prints: contestants side by side, and each beside its bare hops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from bench.core.spread import Spread
from bench.services.overhead.disturbance import MachineLoad
from bench.services.overhead.outcome import STAGES, Cost, Measured


def print_costs(console: Console, costs: Sequence[Cost]) -> None:
    """Prints what the contestants cost, side by side."""
    console.print(_times(costs))
    console.print(_facts(costs))
    console.print(_beside_bare_hops(costs))


def _table(title: str, corner: str, costs: Sequence[Cost]) -> Table:
    return Table(corner, *(each.contestant.name for each in costs), title=title)


def _times(costs: Sequence[Cost]) -> Table:
    table = _table("Times of every stage", "p50 / p99 / max, ms", costs)
    ours = [each.carpool for each in costs]
    for stage in STAGES:
        cells = [_cell(each.stages_ms.get(stage)) for each in ours]
        table.add_row(
            f"{stage}, seen from outside", *cells, style="bold" if stage == "total" else ""
        )
    for stage in dict.fromkeys(stage for each in ours for stage in each.services_ms):
        table.add_row(
            f"{stage}, as the services say", *(_cell(each.services_ms.get(stage)) for each in ours)
        )
    return table


def _facts(costs: Sequence[Cost]) -> Table:
    table = _table("Commits and CPU", "", costs)
    ours = [each.carpool for each in costs]
    table.add_row(
        "questions", *(f"{sum(books.published for books in each.books):,}" for each in ours)
    )
    for name in sorted({name for each in ours for name in each.commits_per_s}):
        table.add_row(
            f"commits a second: {name}",
            *(f"{each.commits_per_s.get(name, 0.0):.1f}" for each in ours),
        )
    for name in sorted({name for each in ours for name in each.cpu_s}):
        table.add_row(
            f"CPU, cores: {name}",
            *(f"{each.cpu_s.get(name, 0.0) / each.seconds:.2f}" for each in ours),
        )
    return table


def _beside_bare_hops(costs: Sequence[Cost]) -> Table:
    table = _table("Beside bare hops", "", costs)

    def rows(what: str, cell: Callable[[Measured], str]) -> None:
        table.add_row(f"{what}: Carpool", *(cell(each.carpool) for each in costs))
        table.add_row(f"{what}: bare hops", *(cell(each.bare) for each in costs))

    def ratios(what: str, cell: Callable[[Cost], str]) -> None:
        table.add_row(f"{what}: Carpool / bare", *(cell(each) for each in costs), style="bold")

    rows("p50 / p99 / max, ms", lambda side: _cell(side.total))
    ratios(
        "p50, p99",
        lambda each: "-" if each.ratio is None else f"{each.ratio.p50:.2f}, {each.ratio.p99:.2f}",
    )
    rows("CPU a question, ms", lambda side: f"{side.cpu_ms_a_question:.2f}")
    ratios("CPU a question", lambda each: "-" if each.ratio is None else f"{each.ratio.cpu:.2f}")
    rows("CPU of all, cores", lambda side: f"{sum(side.cpu_s.values()) / side.seconds:.2f}")
    rows(
        "CPU stolen by turn, %",
        lambda side: _by_turn(side, lambda load: load.stolen_share, scale=100),
    )
    rows(
        "mean wait for a CPU by turn, us",
        lambda side: _by_turn(side, lambda load: load.cpu_wait_us),
    )
    table.add_row(
        "CPU at rest, cores: Carpool", *(f"{each.bare.standby_cores:.2f}" for each in costs)
    )
    table.add_row(
        "CPU at rest, cores: bare hops", *(f"{each.carpool.standby_cores:.2f}" for each in costs)
    )
    return table


def _by_turn(
    side: Measured, figure: Callable[[MachineLoad], float | None], scale: float = 1
) -> str:
    found = [figure(each) for each in side.machine]
    return ", ".join("?" if value is None else f"{value * scale:.1f}" for value in found)


def _cell(found: Spread | None) -> str:
    return "-" if found is None else f"{found.p50:,.1f} / {found.p99:,.1f} / {found.max:,.0f}"

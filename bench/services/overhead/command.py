"""The run of `carpool bench overhead`: contestants round by round, tables, report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from bench.core.kafka import require_kafka, started_broker
from bench.core.report import RunStart, finish
from bench.core.spread import Spread
from bench.core.stack import parse_settings
from bench.data.made_up import made_up_index, made_up_questions
from bench.services.overhead.contestants import DeliveryContestant, chosen
from bench.services.overhead.outcome import STAGES, Cost, MeasuredLoad, SideResult, cost, promises
from bench.services.overhead.sides import BothSides, open_sides

TURNS = ("carpool", "bare", "bare", "carpool")
"""Which side is measured, in turn: drift of the machine meets both sides alike."""


class OverheadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options. `seconds`: measured load of each side of a contestant.

    `contestants`: short names, none for all. `settings`: SECTION.NAME=VALUE each.
    """

    rate_per_s: float
    seconds: float
    warm_up_s: float
    settings: tuple[str, ...]
    contestants: tuple[str, ...] = ()


def run(options: OverheadOptions, work: Path, json_file: Path | None) -> bool:
    """Runs the benchmark; returns whether every promise was kept. Raises `CarpoolError`."""
    contestants = chosen(options.contestants)
    require_kafka()
    start = RunStart.now()
    notes = Console(stderr=True, highlight=False)
    folder = (work / "overhead").resolve()
    index = made_up_index(folder)
    settings = parse_settings(options.settings)
    notes.print(f"logs of services, bare hops and brokers: {folder}")
    costs = []
    for contestant in contestants:
        notes.print(contestant.name)
        log_folder = folder / contestant.short_name
        with open_sides(contestant, index, folder=log_folder, settings=settings) as sides:
            costs.append(measure(contestant, sides, options))
    report = start.report(
        "overhead",
        settings=msgspec.to_builtins(options) | {"services": settings},
        promises=promises(costs, options.rate_per_s),
        results=costs,
        index=index.facts,
        broker=started_broker(),
    )
    return finish(report, json_file, lambda console: print_costs(console, costs))


def measure(contestant: DeliveryContestant, sides: BothSides, options: OverheadOptions) -> Cost:
    """Warms both sides up and measures them in turn. Blocks."""
    rate_per_s = options.rate_per_s
    if warm_up := made_up_questions(round(rate_per_s * options.warm_up_s)):
        sides.warm_up(warm_up, rate_per_s)
    share_s = options.seconds / TURNS.count("carpool")
    questions = made_up_questions(max(1, round(rate_per_s * share_s)))
    turns: dict[str, list[MeasuredLoad]] = {"carpool": [], "bare": []}
    for turn in TURNS:
        side = sides.carpool if turn == "carpool" else sides.bare
        turns[turn].append(sides.measure(side, questions, rate_per_s))
    return cost(contestant, turns["carpool"], turns["bare"])


def print_costs(console: Console, costs: Sequence[Cost]) -> None:
    """Prints the contestants as columns: stages, then Carpool and bare hops."""
    names = [each.contestant.name for each in costs]
    stages = Table("p50 / p99 / max, ms", *names, title="Times of every stage")
    for stage in STAGES:
        stages.add_row(stage, *(_cell(each.carpool.stages_ms.get(stage)) for each in costs))
    console.print(stages)
    table = Table("", *names, title="Carpool and bare hops")

    def rows(what: str, cell: Callable[[SideResult], str]) -> None:
        table.add_row(f"{what}: Carpool", *(cell(each.carpool) for each in costs))
        table.add_row(f"{what}: bare hops", *(cell(each.bare) for each in costs))

    rows("questions", lambda side: f"{sum(each.published for each in side.accounting):,}")
    rows("p50 / p99 / max, ms", lambda side: _cell(side.total))
    rows("CPU for a question, ms", lambda side: f"{side.cpu_ms_a_question:.2f}")
    rows("cores in use", lambda side: f"{sum(side.cpu_s.values()) / side.seconds:.2f}")
    ratios = [each.ratio for each in costs]
    table.add_row(
        "Carpool / bare hops: p50, p99, CPU",
        *("-" if r is None else f"{r.p50:.2f}, {r.p99:.2f}, {r.cpu:.2f}" for r in ratios),
        style="bold",
    )
    console.print(table)


def _cell(found: Spread | None) -> str:
    return "-" if found is None else f"{found.p50:,.1f} / {found.p99:,.1f} / {found.max:,.0f}"

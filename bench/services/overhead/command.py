"""The run of `carpool bench overhead`: contestants round by round, tables, report."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from bench.core.services_run import begin_run
from bench.core.spread import Spread
from bench.data.made_up import made_up_index, made_up_questions
from bench.services.options import OverheadOptions
from bench.services.overhead.contestants import DeliveryContestant, chosen
from bench.services.overhead.outcome import STAGES, Cost, MeasuredLoad, SideResult, cost, promises
from bench.services.overhead.sides import BothSides, open_sides

TURNS = ("carpool", "bare", "bare", "carpool")
"""Which side is measured, in turn: drift of the machine meets both sides alike."""


def run(options: OverheadOptions) -> bool:
    """Runs the benchmark; returns whether every promise was kept. Raises `CarpoolError`."""
    contestants = chosen(options.contestants)
    run = begin_run("overhead", options)
    index = made_up_index(run.folder)
    costs = []
    for contestant in contestants:
        run.note(contestant.name)
        log_folder = run.folder / contestant.short_name
        with open_sides(contestant, index, folder=log_folder, settings=run.settings) as sides:
            costs.append(measure(contestant, sides, options))
    return run.finish(
        lambda console: print_costs(console, costs),
        promises=promises(costs, options.rate_per_s),
        results=costs,
        index=index.facts,
    )


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

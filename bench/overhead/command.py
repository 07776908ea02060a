"""What `carpool bench overhead` does: the contestants round by round, the tables, the report."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from bench.commands import parse_settings
from bench.figures import Spread
from bench.kafka_runs import kafka_report, made_up_index, made_up_questions, require_kafka
from bench.machine import this_machine
from bench.overhead.outcome import CONTESTANTS, STAGES, Contestant, Cost, Round, cost, promises
from bench.overhead.rig import open_rig
from bench.report import print_promises, write_report


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for. `seconds` of measured load a contestant, shared by its rounds; `settings`: SECTION.NAME=VALUE each."""

    rate_per_s: float
    seconds: float
    warm_up_s: float
    rounds: int
    settings: tuple[str, ...]


def run(options: Options, work: Path, json_file: Path | None, contestants: Sequence[Contestant] = CONTESTANTS) -> bool:
    """Runs the benchmark in the folder `work`; returns whether its promises held. Blocks for minutes. Raises `CarpoolError`."""
    require_kafka()
    started_s, machine = time.time(), this_machine()
    notes = Console(stderr=True, highlight=False)
    folder = (work / "overhead").resolve()
    index = made_up_index(folder)
    settings = parse_settings(options.settings)
    per_round = max(1, round(options.rate_per_s * options.seconds / options.rounds))
    questions = made_up_questions(per_round)
    warm_up = made_up_questions(round(options.rate_per_s * options.warm_up_s))
    rounds: dict[str, list[Round]] = {each.name: [] for each in contestants}
    notes.print(f"logs of services and brokers: {folder}")
    for number in range(options.rounds):
        # There and back: whatever drifts on the machine meets all of them alike.
        for contestant in contestants if number % 2 == 0 else reversed(contestants):
            notes.print(f"round {number + 1} of {options.rounds}: {contestant.name}")
            log_folder = folder / f"{contestant.delivery}-{contestant.brokers}-{number}"
            with open_rig(contestant, index, folder=log_folder, settings=settings) as rig:
                if warm_up:
                    rig.warm_up(warm_up, options.rate_per_s)
                rounds[contestant.name].append(rig.measure(questions, options.rate_per_s))
    costs = [cost(contestant, rounds[contestant.name]) for contestant in contestants]
    report = kafka_report(
        "overhead",
        started_s=started_s,
        machine=machine,
        index=index,
        settings=msgspec.to_builtins(options) | {"services": settings},
        promises=promises(costs, options.rate_per_s),
        results=costs,
    )
    if json_file is not None:
        write_report(report, json_file)
    console = Console(file=sys.stderr if str(json_file) == "-" else sys.stdout)
    print_costs(console, costs)
    print_promises(console, report.promises)
    return report.holds


def print_costs(console: Console, costs: Sequence[Cost]) -> None:
    """Prints what the contestants cost, side by side."""
    times = Table("p50 / p99 / max, ms", *(each.contestant.name for each in costs), title="Times of every stage")
    for stage in STAGES:
        cells = [_cell(each.stages_ms.get(stage)) for each in costs]
        times.add_row(f"{stage}, seen from outside", *cells, style="bold" if stage == "total" else "")
    for stage in dict.fromkeys(stage for each in costs for stage in each.services_ms):
        times.add_row(f"{stage}, as the services say", *(_cell(each.services_ms.get(stage)) for each in costs))
    console.print(times)
    facts = Table("", *(each.contestant.name for each in costs), title="Commits and CPU")
    facts.add_row("questions", *(f"{sum(books.published for books in each.books):,}" for each in costs))
    for name in sorted({name for each in costs for name in each.commits_per_s}):
        facts.add_row(f"commits a second: {name}", *(f"{each.commits_per_s.get(name, 0.0):.1f}" for each in costs))
    for name in sorted({name for each in costs for name in each.cpu_s}):
        facts.add_row(f"CPU, cores: {name}", *(f"{each.cpu_s.get(name, 0.0) / each.seconds:.2f}" for each in costs))
    facts.add_row("CPU a question, ms", *(f"{each.cpu_ms_a_question:.2f}" for each in costs))
    console.print(facts)


def _cell(found: Spread | None) -> str:
    return "-" if found is None else f"{found.p50:,.1f} / {found.p99:,.1f} / {found.max:,.0f}"

"""What `carpool bench overhead` does: the contestants round by round, the report."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from rich.console import Console

from bench.core.machine import this_machine
from bench.core.made_up import kafka_report, made_up_index, made_up_questions, require_kafka
from bench.core.report import print_promises, write_report
from bench.services.commands import parse_settings
from bench.services.overhead.contestants import chosen
from bench.services.overhead.outcome import Round, cost, promises
from bench.services.overhead.rig import Rig, open_rig
from bench.services.overhead.tables import print_costs

TURNS = (True, False, False, True)
"""Of a round, whether Carpool is asked, or the bare hops: whatever drifts on the machine meets both
alike.
"""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for. `seconds` of measured load of Carpool and of bare hops for each
    contestant, shared by its rounds; `settings`: SECTION.NAME=VALUE each; `contestants`: short
    names, none for all.
    """

    rate_per_s: float
    seconds: float
    warm_up_s: float
    rounds: int
    settings: tuple[str, ...]
    contestants: tuple[str, ...] = ()


def run(options: Options, work: Path, json_file: Path | None) -> bool:
    """Runs the benchmark in the folder `work`; returns whether its promises held. Blocks for
    minutes. Raises `CarpoolError`.
    """
    contestants = chosen(options.contestants)
    require_kafka()
    started_s, machine = time.time(), this_machine()
    notes = Console(stderr=True, highlight=False)
    folder = (work / "overhead").resolve()
    index = made_up_index(folder)
    settings = parse_settings(options.settings)
    warm_up = made_up_questions(round(options.rate_per_s * options.warm_up_s))
    carpool: dict[str, list[Round]] = {each.name: [] for each in contestants}
    bare: dict[str, list[Round]] = {each.name: [] for each in contestants}
    notes.print(f"logs of services, bare hops and brokers: {folder}")
    for number in range(options.rounds):
        # There and back: whatever drifts on the machine meets all of them alike.
        for contestant in contestants if number % 2 == 0 else reversed(contestants):
            notes.print(f"round {number + 1} of {options.rounds}: {contestant.name}")
            log_folder = folder / f"{contestant.short_name}-{number}"
            with open_rig(contestant, index, folder=log_folder, settings=settings) as rig:
                if warm_up:
                    rig.warm_up(warm_up, options.rate_per_s)
                for is_ours, found in turns(rig, options, number):
                    (carpool if is_ours else bare)[contestant.name].append(found)
    costs = [cost(each, carpool[each.name], bare[each.name]) for each in contestants]
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


def turns(rig: Rig, options: Options, number: int) -> Iterator[tuple[bool, Round]]:
    """Yields each turn of one round, and whether it is Carpool's. Every other round begins with the
    bare hops.
    """
    own_turns = options.rounds * len(TURNS) // 2
    questions = made_up_questions(max(1, round(options.rate_per_s * options.seconds / own_turns)))
    for is_ours in TURNS if number % 2 == 0 else [not each for each in TURNS]:
        yield (
            is_ours,
            rig.measure(rig.carpool if is_ours else rig.bare, questions, options.rate_per_s),
        )

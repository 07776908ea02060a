"""The options of `carpool bench overhead`. Light to import: the work is in
`bench.services.overhead.command`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.core.options import JsonOption, ServiceSettingOption, WorkOption
from bench.services.overhead.contestants import CONTESTANTS


def overhead(
    rate: Annotated[float, typer.Option("--rate", min=0.1, help="Questions a second.")] = 200.0,
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds",
            min=0.1,
            help="Measured load of each contestant, and as much of its bare hops.",
        ),
    ] = 60.0,
    warm_up: Annotated[
        float,
        typer.Option(
            "--warm-up",
            min=0,
            help="Seconds of load before, which are not measured, in each round and for each side: "
            "until then Java compiles.",
        ),
    ] = 90.0,
    rounds: Annotated[
        int,
        typer.Option(
            "--rounds",
            min=1,
            help="Turns of each contestant, which share its seconds, there and back.",
        ),
    ] = 1,
    contestants: Annotated[
        list[str] | None,
        typer.Option(
            "--contestant",
            metavar="NAME",
            help=f"Only this one of {', '.join(each.short_name for each in CONTESTANTS)}; may be "
            "repeated.",
            show_default=False,
        ),
    ] = None,
    work: WorkOption = Path(".carpool/bench"),
    settings: ServiceSettingOption = None,
    json_file: JsonOption = None,
) -> None:
    """What does the way through the services cost: exactly once and at least once, on one broker
    and on three?

    Starts Apache Kafka from KAFKA_HOME, the shipped services on a small index, and sends questions
    with vectors at a steady rate, whether or not earlier ones are answered. No model embeds and
    none answers, so what is left is the way through three services and four topics. A question's
    time counts from when it was due until its committed answer is read.

    The baseline, in turns with the services on the same brokers: bare hops, three processes in a
    chain that only copy the question from topic to topic, with plain clients, the same settings and
    the same pause between commits. The table gives Carpool over bare hops, and how much CPU time
    the host took from the machine in each turn.

    Ends with 1 when a promise is broken: a percentile over its bound, a question without an answer
    or with two.

    Example:  carpool bench overhead --json overhead.json
    """
    from bench.services.overhead import command

    options = command.Options(
        rate_per_s=rate,
        seconds=seconds,
        warm_up_s=warm_up,
        rounds=rounds,
        settings=tuple(settings or ()),
        contestants=tuple(contestants or ()),
    )
    if not command.run(options, work, json_file):
        raise typer.Exit(1)

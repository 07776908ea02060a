"""The options of `carpool bench rebalance`. Light to import: the work is in
`bench.reliability.rebalance.command`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.core.options import JsonOption, ServiceSettingOption, WorkOption


def rebalance(
    rate: Annotated[
        float, typer.Option("--rate", min=6, help="Queries a second, over six partitions.")
    ] = 240.0,
    phase: Annotated[
        float,
        typer.Option(
            "--phase", min=1, help="Seconds of load after each change, and of each baseline."
        ),
    ] = 5.0,
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, help="Times from one member to three and back.")
    ] = 2,
    warm_up: Annotated[
        int,
        typer.Option(
            "--warm-up",
            min=0,
            help="Such rounds before, which are not measured: Java compiles what is used.",
        ),
    ] = 1,
    kills: Annotated[
        int,
        typer.Option(
            "--kills",
            min=0,
            help="Members killed inside a transaction that holds offsets, one at a time.",
        ),
    ] = 3,
    work: WorkOption = Path(".carpool/bench"),
    settings: ServiceSettingOption = None,
    json_file: JsonOption = None,
) -> None:
    """How long do partitions pause when members of a service come, go and are killed under load?

    Starts one broker of Apache Kafka from KAFKA_HOME and a generator without an LLM, which stands
    for all services: they share the loop. Under a steady load a second and a third member come and
    go again, then members are killed inside an open transaction that holds offsets. New members
    have imported their modules before they are let in, so that what is measured is the rebalance,
    not the start of an interpreter on cores that are busy.

    A pause is the longest time between two answers of a partition that stayed with its member, less
    the 99th percentile of that time while nobody comes or goes.

    Ends with 1 when a promise is broken: an answer that is missing or came twice, a pause of 200 ms
    or more, a takeover that takes longer than the session time-out and two seconds.

    Example:  carpool bench rebalance --json rebalance.json
    """
    from bench.reliability.rebalance import command

    options = command.Options(
        rate_per_s=rate,
        phase_s=phase,
        rounds=rounds,
        warm_up=warm_up,
        kills=kills,
        settings=tuple(settings or ()),
    )
    if not command.run(options, work, json_file):
        raise typer.Exit(1)

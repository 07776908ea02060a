"""The options of `carpool bench chaos`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.core.options import JsonOption, ServiceSettingOption, WorkOption


def chaos(
    queries: Annotated[
        int, typer.Option("--queries", min=1, help="Questions, published over the whole run.")
    ] = 20_000,
    kills: Annotated[
        int, typer.Option("--kills", min=1, help="Kills and pauses of services and brokers.")
    ] = 60,
    seed: Annotated[int, typer.Option("--seed", help="Of whom to strike, how, and when.")] = 0,
    minutes: Annotated[
        float, typer.Option("--minutes", min=0.1, help="Over which the questions are published.")
    ] = 10.0,
    work: WorkOption = Path(".carpool/bench"),
    settings: ServiceSettingOption = None,
    json_file: JsonOption = None,
) -> None:
    """Is anything lost or repeated while services and brokers are killed and paused?

    Starts three brokers of Apache Kafka from KAFKA_HOME and two of each service, publishes
    questions at a steady rate, and strikes at moments drawn from the seed: SIGKILL, or SIGSTOP for
    some seconds, of a service or of one broker at a time. What died is started again. A strike
    counts only with work in flight and answers since the last. To kill inside an open transaction,
    the victim is stopped, its coordinator is asked for the transaction's state, and only then is it
    killed.

    In the end every topic is read as a consumer of committed records reads it, and each question is
    looked for in each.

    Ends with 1 when a promise is broken: a question without an answer, anything twice in any topic,
    fewer strikes than asked for, more than 15 minutes.

    Example:  carpool bench chaos --queries 20000 --kills 60 --seed 0 --json chaos.json
    """
    from bench.reliability.chaos import command

    options = command.Options(
        queries=queries, kills=kills, seed=seed, minutes=minutes, settings=tuple(settings or ())
    )
    if not command.run(options, work, json_file):
        raise typer.Exit(1)

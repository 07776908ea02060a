"""`carpool topics`: create and check the topics."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from carpool.kafka.admin import create_topics
from carpool.kafka.deployment import check_deployment
from cli.console import output, print_json
from cli.exit_codes import FAILED
from cli.options import ClientArgs, JsonOption, command_group, spread
from cli.services import INPUTS
from schemas.topics import TOPICS, read_with

app = command_group("topics", "Make the topics, and check them as a service does at its start.")


@app.command()
@spread
def create(
    partitions: Annotated[
        int | None, typer.Option(min=1, help="Partitions of the keyed topics.")
    ] = None,
    replication: Annotated[
        int | None, typer.Option(min=0, help="Copies of each; 0: three, or as many as brokers.")
    ] = None,
    as_json: JsonOption = False,
    *,
    sources: ClientArgs,
) -> None:
    """Make the topics that are missing; topics that exist do not change.

    `carpool topics check` says how those differ from what they should be.

    \b
    Example:
      carpool topics create --bootstrap kafka:9092 --partitions 12 --replication 3
    """
    kafka = sources.settings(partitions=partitions, replication_factor=replication).kafka
    created = create_topics(kafka)
    if as_json:
        print_json({"created": created})
        return
    for name in created:
        output().print(Text("made", "green"), "", name)
    if not created:
        output().print("all topics are there")


@app.command()
@spread
def check(as_json: JsonOption = False, *, sources: ClientArgs) -> None:
    """Run the checks of a service start, without a service. Exit code 1: a service would not start.

    Topics and their settings, copies, unread records against retention, and the features of the
    brokers. A warning does not stop a service.

    \b
    Example:
      carpool topics check --bootstrap kafka:9092
    """
    kafka = sources.settings().kafka
    found = [
        check_deployment(
            kafka,
            kafka.delivery,
            TOPICS,
            group=kafka.group_of(service),
            inputs=tuple(each.name for each in read_with(topic)),
        )
        for service, topic in INPUTS.items()
    ]
    problems, warnings = (
        list(dict.fromkeys(text for deployment in found for text in getattr(deployment, kind)))
        for kind in ("problems", "warnings")
    )
    first = found[0]
    if as_json:
        facts = {"delivery": first.delivery, "transactions": first.has_transactions}
        print_json(facts | {"problems": problems, "warnings": warnings})
    else:
        for text in problems:
            output().print(Text("problem", "red"), "", text)
        for text in warnings:
            output().print(Text("warning", "yellow"), "", text)
        output().print(f"delivery: {first.delivery.replace('_', ' ')}; {first.promise}")
    if problems:
        raise typer.Exit(FAILED)

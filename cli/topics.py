"""`carpool topics`: create, list, describe and check the topics."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape
from rich.table import Table

from carpool.kafka.settings import KafkaSettings
from cli.console import output, print_json
from cli.exit_codes import FAILED
from cli.options import BesideOption, ConfigOption, JsonOption, SetOption, given
from cli.settings import load_client_side
from schemas.topics import BATCH, GROUPS, QUERIES, RETRIEVALS, TOPICS

HOUR_MS = 3_600_000
INPUTS = {"grouper": QUERIES, "searcher": GROUPS, "generator": RETRIEVALS}
"""The topic that each service reads; beside it, that of the class `batch`."""

app = typer.Typer(
    name="topics",
    help="Make the topics, list them, and compare them with what they should be.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

PartitionsOption = Annotated[
    int | None,
    typer.Option("--partitions", min=1, help="Partitions of the keyed topics.", show_default=False),
]
ReplicationOption = Annotated[
    int | None,
    typer.Option(
        "--replication",
        min=0,
        help="Copies of each; 0: three, or as many as brokers.",
        show_default=False,
    ),
]


@app.command()
def create(
    partitions: PartitionsOption = None,
    replication: ReplicationOption = None,
    bootstrap: BesideOption = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
) -> None:
    """Make the topics that are missing; topics that exist do not change.

    Exit code 1: a topic differs from what it should be; `topics describe` says which.

    \b
    Example:
      carpool topics create --bootstrap kafka:9092 --partitions 12 --replication 3
    """
    from carpool.kafka.admin import create_topics

    kafka = _settings(bootstrap, config, assignments, partitions, replication)
    created = create_topics(kafka)
    states = _states(kafka)
    drifted = {state["topic"]: state["drift"] for state in states if state["drift"]}
    if as_json:
        print_json({"created": created, "drift": drifted})
    else:
        for state in states:
            mark = "[green]made[/]" if state["topic"] in created else "[dim]there[/]"
            output().print(f"{mark}  {state['topic']}")
        for name, drift in drifted.items():
            output().print(f"[yellow]differs[/]  {name}: {'; '.join(drift)}")
    if drifted:
        raise typer.Exit(FAILED)


@app.command("list")
def list_topics(as_json: JsonOption = False) -> None:
    """List the topics that Carpool uses, with their purpose. Asks no broker.

    \b
    Example:
      carpool topics list --json
    """
    if as_json:
        print_json(TOPICS)
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("topic", "partition by", "keeps", "largest", "what"):
        table.add_column(
            column, header_style="dim", min_width=16 if column == "what" else None, overflow="fold"
        )
    for topic in TOPICS:
        keeps = f"{topic.retention_ms // HOUR_MS} h" + (
            ", then compacted" if topic.cleanup == "compact" else ""
        )
        table.add_row(
            topic.name,
            topic.partition_by,
            keeps,
            f"{topic.max_message_bytes // 1024:,} KiB",
            topic.purpose,
        )
    output().print(table)


@app.command()
def describe(
    bootstrap: BesideOption = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
) -> None:
    """Show the topics at the brokers and how they differ. Exit code 1: a topic differs.

    \b
    Example:
      carpool topics describe --bootstrap kafka:9092
    """
    states = _states(_settings(bootstrap, config, assignments))
    if as_json:
        print_json(states)
    else:
        table = Table(box=None, padding=(0, 2, 0, 0))
        for column in ("topic", "partitions", "copies", "differs"):
            table.add_column(column, header_style="dim", overflow="fold")
        for state in states:
            differs = (
                f"[yellow]{'; '.join(state['drift'])}[/]" if state["drift"] else "[green]no[/]"
            )
            table.add_row(state["topic"], str(state["partitions"]), str(state["replicas"]), differs)
        output().print(table)
    if any(state["drift"] for state in states):
        raise typer.Exit(FAILED)


@app.command()
def check(
    bootstrap: BesideOption = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
) -> None:
    """Run the checks of a service start, without a service. Exit code 1: a service would not start.

    Topics and their settings, copies, unread records against retention, and what the brokers can. A
    warning does not stop a service.

    \b
    Example:
      carpool topics check --bootstrap kafka:9092
    """
    from carpool.kafka.deployment import check_deployment

    kafka = _settings(bootstrap, config, assignments)
    found = {
        service: check_deployment(
            kafka,
            kafka.delivery,
            TOPICS,
            group=kafka.group_of(service),
            inputs=(topic.name, BATCH[topic.name].name),
        )
        for service, topic in INPUTS.items()
    }
    problems = list(
        dict.fromkeys(each for deployment in found.values() for each in deployment.problems)
    )
    warnings = list(
        dict.fromkeys(each for deployment in found.values() for each in deployment.warnings)
    )
    first = next(iter(found.values()))
    if as_json:
        facts = {"delivery": first.delivery, "abilities": asdict(first.abilities)}
        print_json(facts | {"problems": problems, "warnings": warnings})
    else:
        for text in problems:
            output().print(f"[red]problem[/]  {escape(text)}")
        for text in warnings:
            output().print(f"[yellow]warning[/]  {escape(text)}")
        output().print(f"delivery: {first.delivery.replace('_', ' ')}; {first.promise}")
    if problems:
        raise typer.Exit(FAILED)


def _settings(
    bootstrap: str | None,
    config: Any,
    assignments: list[str] | None,
    partitions: int | None = None,
    replication: int | None = None,
) -> KafkaSettings:
    flags = {"bootstrap": bootstrap, "partitions": partitions, "replication_factor": replication}
    return load_client_side(given(config, assignments, kafka=flags)).kafka


def _states(kafka: KafkaSettings) -> list[dict[str, Any]]:
    from carpool.kafka.admin import describe_topics

    return [
        {
            "topic": state.topic.name,
            "partitions": state.partitions,
            "replicas": state.replicas,
            "drift": list(state.drift),
            "wanted": msgspec.to_builtins(state.topic),
        }
        for state in describe_topics(kafka)
    ]

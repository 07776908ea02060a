"""`carpool status`: stuck services, readiness, topics, and how many records wait where."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from carpool.errors import CarpoolError
from carpool.kafka.admin import missing_topics
from cli.console import output, print_json, table
from cli.exit_codes import FAILED
from cli.http import ask_service
from cli.options import ClientArgs, JsonOption, spread
from cli.runfile import RunFile
from cli.services import INPUTS
from cli.settings import ClientSide
from cli.status_groups import Brokers
from cli.status_verdict import GroupStatus, ServiceStatus, indexes_line, who_is_stuck
from schemas.topics import read_with

LOOK_S = 1.0
"""The time between the two looks that show whether a partition moves."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The whole status. `stuck`: one sentence for each stuck service.

    `topics_missing` is None when no broker answers; `broker_error` says why. `groups` is None when
    the brokers do not describe groups; `groups_error` says why.
    """

    is_ready: bool
    stuck: list[str]
    bootstrap: str
    broker_error: str | None
    topics_missing: list[str] | None
    services: list[ServiceStatus]
    groups: list[GroupStatus] | None
    groups_error: str | None


@spread
def status(
    urls: Annotated[
        list[str] | None,
        typer.Option(
            "--url",
            "-u",
            metavar="NAME=HOST:PORT",
            help="A service's HTTP address, once for each of its processes. Default: those of "
            "`carpool up`, or its default ports.",
        ),
    ] = None,
    stuck_after_s: Annotated[
        float,
        typer.Option(
            "--stuck-after",
            metavar="SECONDS",
            min=0.0,
            help="How long a partition may stand still while records wait in it.",
        ),
    ] = 30.0,
    as_json: JsonOption = False,
    *,
    sources: ClientArgs,
) -> None:
    """Show which services are stuck or not ready, and how many records wait for each.

    Asks the brokers for the consumer groups, and each service for its pages. Exit code 1: something
    is stuck or not ready. Without `carpool up` on this machine, name the services with --url.

    \b
    Examples:
      carpool status
      carpool status --json
      carpool status --url searcher=10.0.0.6:9464 --url searcher=10.0.0.7:9464
    """
    settings = sources.settings()
    found = _found(settings, _addresses(settings, urls or []), stuck_after_s)
    if as_json:
        print_json(found)
    else:
        _print(found)
    if not found.is_ready:
        raise typer.Exit(FAILED)


def _found(settings: ClientSide, addresses: list[tuple[str, str]], stuck_after_s: float) -> Status:
    services = [ask_service(name, address, INPUTS[name].name) for name, address in addresses]
    missing: list[str] | None = None
    groups: list[GroupStatus] | None = None
    broker_error = groups_error = None
    try:
        missing = missing_topics(settings.kafka)
        groups, groups_error = _groups(settings)
    except CarpoolError as error:
        broker_error = str(error)
    stuck = [
        sentence
        for name, group in zip(INPUTS, groups or (), strict=False)
        if (sentence := who_is_stuck(name, group, services, stuck_after_s=stuck_after_s))
    ]
    return Status(
        is_ready=not stuck
        and all(service.state == "ready" for service in services)
        and missing == [],
        stuck=stuck,
        bootstrap=settings.kafka.bootstrap,
        broker_error=broker_error,
        topics_missing=missing,
        services=services,
        groups=groups,
        groups_error=groups_error,
    )


def _addresses(settings: ClientSide, urls: list[str]) -> list[tuple[str, str]]:
    """The (service, address) of each process to ask."""
    if urls:
        pairs = [url.partition("=") for url in urls]
        for name, equals, address in pairs:
            if not equals or name not in INPUTS or ":" not in address:
                raise typer.BadParameter(
                    f"--url {name}{equals}{address}: write one of {', '.join(INPUTS)}=HOST:PORT"
                )
        return [(name, address) for name, _, address in pairs]
    run = RunFile(Path(settings.up.state_dir)).read()
    if run is not None:
        return [(name, address) for name, address in run.http.items() if name in INPUTS]
    return [(name, f"127.0.0.1:{port}") for port, name in enumerate(INPUTS, settings.up.http_port)]


def _groups(settings: ClientSide) -> tuple[list[GroupStatus] | None, str | None]:
    """The consumer groups of `INPUTS`, in their order."""
    reads = {
        settings.kafka.group_of(name): tuple(each.name for each in read_with(topic))
        for name, topic in INPUTS.items()
    }
    try:
        return Brokers(settings.kafka).groups(reads, look_s=LOOK_S), None
    except CarpoolError as error:
        return None, str(error)


def _print(found: Status) -> None:
    console = output()

    def say(text: str, style: str) -> None:
        console.print(Text(text, style=style), soft_wrap=True)

    for sentence in found.stuck:
        say(sentence, "bold red")
    if found.broker_error is not None:
        say(found.broker_error, "red")
    elif found.topics_missing:
        say(
            f"missing topics: {', '.join(found.topics_missing)}; `carpool topics create` makes "
            "them",
            "red",
        )
    elif not found.stuck:
        moving = "nothing is stuck" if found.groups is not None else "all topics are there"
        say(f"brokers at {found.bootstrap}: {moving}", "green")
    if found.groups_error is not None:
        say(f"{found.groups_error}; who is stuck is not known", "dim")
    line, are_equal = indexes_line(found.services)
    say(line, "dim" if are_equal else "yellow")
    console.print(_services_table(found.services))
    for service in found.services:
        for line in (*service.missing, *service.notes):
            say(f"{service.name}: {line}", "yellow")
    if any(group.waiting for group in found.groups or ()):
        console.print(_partitions_table(found.groups or []))


def _services_table(services: list[ServiceStatus]) -> Table:
    counts = ("waiting", "in flight", "taken in", "refused")
    made = table("service", "state", *counts, "answers", "address", whole=("service", "address"))
    for service in services:
        style = {"ready": "green", "down": "red"}.get(service.state, "yellow")
        numbers = (service.lag_records, service.in_flight, service.consumed, service.dead_letters)
        made.add_row(
            service.name,
            Text(service.state + (", paused" if service.is_paused else ""), style=style),
            *("" if number is None else f"{number:,}" for number in numbers),
            ", ".join(f"{count:,} {name}" for name, count in sorted(service.answers.items())),
            Text(service.address, style="dim"),
        )
    return made


def _partitions_table(groups: list[GroupStatus]) -> Table:
    """Returns every partition with waiting records."""
    names = ("partition", "waiting", "oldest", "moves", "member")
    made = table(*names, whole=("partition", "member"))
    for group in groups:
        for partition in group.partitions:
            if partition.waiting:
                made.add_row(
                    f"{partition.topic}[{partition.number}]",
                    f"{partition.waiting:,}",
                    "" if partition.oldest_s is None else f"{partition.oldest_s:,.1f} s",
                    Text("yes", style="green")
                    if partition.has_moved
                    else Text("no", style="yellow"),
                    partition.member or Text("nobody", style="red"),
                )
    return made

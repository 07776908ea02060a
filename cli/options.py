"""Options that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from carpool.kafka.settings import KafkaSettings
from carpool.settings import CONFIG_VARIABLE, settings_file
from cli.settings import ClientSide, Given, load_client_side, parse_assignments
from schemas.topics import TOPICS

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", help=f"Settings file (TOML); also {CONFIG_VARIABLE}."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="SECTION.NAME=VALUE",
        help="One setting; wins over file and environment.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
BootstrapOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap", "-b", metavar="HOST:PORT", help="Brokers. Default: kafka.bootstrap."
    ),
]

BesideOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        "-b",
        metavar="HOST:PORT",
        help="Brokers. Default: those of a running `carpool up`.",
    ),
]


def given(config: Path | None, assignments: list[str] | None, **flags: dict[str, Any]) -> Given:
    """Returns where the settings of this call come from; `flags` are a command's own options, by
    section.

    Raises `ConfigError` when an assignment has another shape, or names no setting.
    """
    found = Given(
        file=settings_file(config, os.environ),
        environ=os.environ,
        flags=parse_assignments(assignments or []),
    )
    own = {
        section: {name: value for name, value in values.items() if value is not None}
        for section, values in flags.items()
    }
    return found.with_flags(own)


def client_side(
    bootstrap: str | None, config: Path | None, assignments: list[str] | None, **kafka: Any
) -> ClientSide:
    """Returns the settings of a command that talks to running services.

    `kafka`: more settings of that section which the command has as options.
    """
    flags = {"bootstrap": bootstrap, **kafka}
    return load_client_side(given(config, assignments, kafka=flags))


def logical_topic(kafka: KafkaSettings, topic: str) -> str:
    """Returns the name of a topic without the prefix; one of ours may be given with the prefix."""
    ours = {each.name for each in TOPICS}
    bare = kafka.logical_topic(topic)
    return bare if topic not in ours and bare in ours else topic


def passed_on(config: Path | None, assignments: list[str] | None) -> list[str]:
    """Returns the settings options of a call as arguments for the processes that it starts."""
    file = [] if config is None else ["--config", str(config)]
    return file + [part for assignment in assignments or () for part in ("--set", assignment)]

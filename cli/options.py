"""Options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

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
_BOOTSTRAP = ("--bootstrap", "-b")
BootstrapOption = Annotated[
    str | None,
    typer.Option(*_BOOTSTRAP, metavar="HOST:PORT", help="Brokers. Default: kafka.bootstrap."),
]
BesideOption = Annotated[
    str | None,
    typer.Option(
        *_BOOTSTRAP,
        metavar="HOST:PORT",
        help="Brokers. Default: those of a running `carpool up`, else kafka.bootstrap.",
    ),
]


def given(config: Path | None, assignments: list[str] | None, **flags: dict[str, Any]) -> Given:
    """Returns where the settings of this call come from; `flags` are a command's own options, by
    section.

    Raises `ConfigError` when an assignment has another shape, or names no setting.
    """
    found: dict[str, dict[str, Any]] = {**parse_assignments(assignments or [])}
    for section, values in flags.items():
        own = {name: value for name, value in values.items() if value is not None}
        found[section] = found.get(section, {}) | own
    return Given(file=settings_file(config, os.environ), environ=os.environ, flags=found)


def logical_topic(kafka: KafkaSettings, topic: str) -> str:
    """Returns the name of a topic without the prefix; one of ours may be given with the prefix."""
    ours = {each.name for each in TOPICS}
    bare = kafka.logical_topic(topic)
    return bare if topic not in ours and bare in ours else topic


def passed_on(config: Path | None, assignments: list[str] | None) -> list[str]:
    """Returns the settings options of a call as arguments for the processes that it starts."""
    file = [] if config is None else ["--config", str(config)]
    return file + [part for assignment in assignments or () for part in ("--set", assignment)]


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The options that say where the settings of a command come from."""

    bootstrap: BootstrapOption = None
    config: ConfigOption = None
    assignments: SetOption = None

    def given(self, **flags: dict[str, Any]) -> Given:
        """Returns the sources; `flags` are the other options of the command. See `given`."""
        kafka = {"bootstrap": self.bootstrap} | flags.pop("kafka", {})
        return given(self.config, self.assignments, kafka=kafka, **flags)


@dataclass(frozen=True, kw_only=True)
class Beside(Sources):
    """The options of a command that talks to running services."""

    bootstrap: BesideOption = None

    def settings(self, **kafka: Any) -> ClientSide:
        """Returns the settings in force; `kafka`: more settings of that section."""
        return load_client_side(self.given(kafka=kafka))


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Lets a command take dataclasses of options: each field becomes an option of the command."""
    hints = get_type_hints(command, include_extras=True)
    shown: list[Parameter] = []
    groups: dict[str, Any] = {}
    for name, own in signature(command).parameters.items():
        if is_dataclass(kind := hints[name]):
            groups[name] = kind
            of_kind = get_type_hints(kind, include_extras=True)
            shown += [
                own.replace(name=each.name, default=each.default, annotation=of_kind[each.name])
                for each in fields(kind)
            ]
        else:
            shown.append(own.replace(annotation=hints[name]))

    def run(**values: Any) -> None:
        for name, kind in groups.items():
            values[name] = kind(**{each.name: values.pop(each.name) for each in fields(kind)})
        command(**values)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {each.name: each.annotation for each in shown}
    run.__signature__ = Signature(  # type: ignore[attr-defined]
        [each.replace(kind=Parameter.KEYWORD_ONLY) for each in shown]
    )
    return run

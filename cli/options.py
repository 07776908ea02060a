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
BootstrapOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap", "-b", metavar="HOST:PORT", help="Brokers. Default: kafka.bootstrap."
    ),
]

QuestionsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Questions: vectors (.npy), or one a line, as text or as JSON with `text`. Default: "
        "those that Kafka still has.",
    ),
]
LastOption = Annotated[
    int, typer.Option(min=100, metavar="N", help="Take the last N questions at most.")
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


@dataclass(frozen=True, kw_only=True)
class Beside:
    """The options of a command that talks to running services, beside its own."""

    bootstrap: BesideOption = None
    config: ConfigOption = None
    assignments: SetOption = None

    def settings(self, **kafka: Any) -> ClientSide:
        """Returns the settings in force. See `client_side`."""
        return client_side(self.bootstrap, self.config, self.assignments, **kafka)


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

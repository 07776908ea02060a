"""Options that several commands share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from carpool.errors import ConfigError
from cli.settings import CONFIG_VARIABLE, Given, parse_assignments

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", help=f"Settings file (TOML); also {CONFIG_VARIABLE}.", show_default=False
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="SECTION.NAME=VALUE",
        help="One setting; wins over file and environment.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
BootstrapOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        "-b",
        metavar="HOST:PORT",
        help="Brokers. Default: kafka.bootstrap.",
        show_default=False,
    ),
]

BesideOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        "-b",
        metavar="HOST:PORT",
        help="Brokers. Default: those of a running `carpool up`.",
        show_default=False,
    ),
]


def given(config: Path | None, assignments: list[str] | None, **flags: dict[str, Any]) -> Given:
    """Returns where the settings of this call come from; `flags` are a command's own options, by
    section.

    Raises `ConfigError` when an assignment has another shape, or names no setting.
    """
    file = config or (
        Path(os.environ[CONFIG_VARIABLE]) if os.environ.get(CONFIG_VARIABLE) else None
    )
    if file is not None and not file.exists():
        raise ConfigError(f"there is no settings file {file}; check --config and {CONFIG_VARIABLE}")
    found = Given(file=file, environ=os.environ, flags=parse_assignments(assignments or []))
    own = {
        section: {name: value for name, value in values.items() if value is not None}
        for section, values in flags.items()
    }
    return found.with_flags(own)


@dataclass(frozen=True, kw_only=True)
class Passed:
    """The settings options of a call, for the processes that it starts."""

    config: Path | None
    assignments: tuple[str, ...]

    def arguments(self) -> list[str]:
        """Returns the options as arguments of a command line."""
        config = [] if self.config is None else ["--config", str(self.config)]
        return [
            *config,
            *(part for assignment in self.assignments for part in ("--set", assignment)),
        ]

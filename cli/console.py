"""Consoles and tables for people, and JSON for programs; all of it escapes foreign text."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import structlog
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from carpool.clock import SystemClock
from carpool.terminal import TerminalConsole
from carpool.terminal import harmless as harmless
from carpool.terminal import print_json as print_json
from carpool.terminal import print_json_line as print_json_line
from carpool.terminal import print_plain as print_plain

if TYPE_CHECKING:
    from indexer.progress import ProgressReport


def people() -> TerminalConsole:
    """Returns the console for progress and messages: standard error."""
    return TerminalConsole(stderr=True, soft_wrap=True)


def output() -> TerminalConsole:
    """Returns the console for results. No colours without a terminal, or with NO_COLOR."""
    return TerminalConsole()


def show_result(found: Any, shown: RenderableType, *, as_json: bool) -> None:
    """Prints a result: as JSON for programs, or as it is `shown` to people."""
    if as_json:
        print_json(found)
    else:
        output().print(shown, soft_wrap=isinstance(shown, Text | str))


def quiet_logs() -> None:
    """Logs warnings only, to standard error."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )


def step_progress() -> ProgressReport:
    """Returns what a long command tells of its steps, for people."""
    from indexer.progress import PlainProgress

    return PlainProgress(people(), SystemClock())


def table(*columns: str, right: tuple[str, ...] = (), whole: tuple[str, ...] = ()) -> Table:
    """Returns an empty table without lines.

    The columns of `right` are aligned to the right. Those of `whole` are what a next command needs:
    they are neither cut nor broken, however narrow the terminal is.
    """
    made = Table(box=None, padding=(0, 2, 0, 0), show_header=bool(columns))
    for column in columns:
        made.add_column(
            column,
            header_style="dim",
            justify="right" if column in right else "left",
            no_wrap=column in whole,
            overflow="fold",
        )
    return made


def facts(rows: Mapping[str, str], title: str | None = None) -> Table:
    """Returns a table of names and their values."""
    made = table()
    made.title, made.title_justify = title, "left"
    made.add_column(style="bold")
    made.add_column(overflow="fold")
    for name, value in rows.items():
        made.add_row(name, value)
    return made

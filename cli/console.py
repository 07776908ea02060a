"""Consoles and tables for people, and JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table


def people() -> Console:
    """Returns the console for progress and messages: standard error."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def output() -> Console:
    """Returns the console for results. No colours without a terminal, or with NO_COLOR."""
    return Console(highlight=False)


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


def print_json(value: Any) -> None:
    """Prints a value as indented JSON on standard output."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")
    sys.stdout.flush()


def print_json_line(value: Any) -> None:
    """Prints a value as one line of JSON on standard output, and flushes it."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()

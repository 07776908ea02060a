"""Consoles for people, and JSON for programs."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
from rich.console import Console


def people() -> Console:
    """Returns the console for progress and messages: standard error."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def output() -> Console:
    """Returns the console for results. No colours without a terminal, or with NO_COLOR."""
    return Console(highlight=False)


def print_json(value: Any) -> None:
    """Prints a value as indented JSON on standard output."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")
    sys.stdout.flush()


def print_json_line(value: Any) -> None:
    """Prints a value as one line of JSON on standard output, and flushes it."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()

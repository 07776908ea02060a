"""`carpool config`: the settings in force, what each bounds, and where its value came from."""

from __future__ import annotations

import json
import textwrap
from typing import Any

import msgspec
import typer

from carpool.settings import Secret, SettingDoc, describe, section_kinds
from carpool.terminal import without_password
from cli.console import print_json, print_plain
from cli.options import JsonOption, Sources, spread
from cli.settings import CarpoolSettings, load

WIDTH = 100
STARS = "********"
NOT_SET = "(not set)"


class Effective(msgspec.Struct, frozen=True, kw_only=True):
    """One setting as it is in force. A secret's value is stars."""

    section: str
    name: str
    value: Any
    default: Any
    origin: str
    environment: str
    description: str


@spread
def config(
    section: str | None = typer.Argument(None, help="One section; default: all."),
    as_json: JsonOption = False,
    *,
    sources: Sources,
) -> None:
    """Print the settings in force as a settings file (TOML), with comments.

    Each has what it bounds, and where its value came from; a default is a comment.

    A TOML file (--config) wins over defaults, the environment (CARPOOL_SECTION_NAME) over the file,
    flags over the environment. Secrets come from the environment only and are never printed.

    \b
    Examples:
      carpool config searcher
      carpool config > carpool.toml
      CARPOOL_GROUPER_POLICY=greedy carpool config grouper --json
    """
    chosen = sources.given()
    kinds = section_kinds(CarpoolSettings)
    if section is not None and section not in kinds:
        raise typer.BadParameter(f"there is no section {section!r}; there are: {', '.join(kinds)}")
    settings = load(CarpoolSettings, chosen)
    effective = [
        _effective(doc, getattr(getattr(settings, name), doc.name), chosen.origin(name, doc.name))
        for name, kind in kinds.items()
        if section in (None, name)
        for doc in describe(name, kind)
    ]
    if as_json:
        print_json(effective)
    else:
        print_plain(as_toml(effective).rstrip("\n"))


def as_toml(effective: list[Effective]) -> str:
    """Returns a settings file. A default is a comment, so that a later default applies."""
    lines: list[str] = []
    section = None
    for each in effective:
        if each.section != section:
            section = each.section
            lines += ["", f"[{section}]"] if lines else [f"[{section}]"]
        lines += [f"# {line}" for line in textwrap.wrap(each.description, WIDTH)]
        text = f"{each.name} = {_toml_value(each.value)}"
        if each.value in (STARS, NOT_SET):
            lines.append(f"# read from {each.environment} only: {each.value}")
        else:
            lines.append(f"# {text}" if each.origin == "default" else f"{text}  # {each.origin}")
    return "\n".join(lines) + "\n"


def _effective(doc: SettingDoc, value: Any, origin: str) -> Effective:
    if isinstance(value, Secret):
        value, default = (STARS if value.value else NOT_SET), NOT_SET
    else:
        default = msgspec.to_builtins(doc.default)
        value = without_password(value) if isinstance(value, str) else value
    return Effective(
        section=doc.section,
        name=doc.name,
        value=msgspec.to_builtins(value),
        default=default,
        origin=origin,
        environment=doc.environment,
        description=doc.description,
    )


def _toml_value(value: Any) -> str:
    """Returns a value in TOML; for all values but tables it is the notation of JSON."""
    if isinstance(value, dict):
        pairs = (f"{json.dumps(name)} = {_toml_value(it)}" for name, it in value.items())
        return "{" + ", ".join(pairs) + "}"
    return json.dumps(value, ensure_ascii=False)

"""The base of a section of settings, and its documentation derived from its type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

ENVIRONMENT_PREFIX = "CARPOOL_"
SECTIONS = (
    "kafka",
    "http",
    "log",
    "client",
    "index",
    "embedding",
    "indexer",
    "grouper",
    "searcher",
    "generator",
    "llm",
    "vllm",
    "workflow",
    "up",
)
"""Every section, in the order in which `carpool config` prints them."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A section: values with defaults, each `Annotated[..., Meta(description=...)]`.

    A description says what the value limits, its unit, and the effect of too low and too high
    values. `check` says what types cannot.
    """

    def check(self) -> list[str]:
        """Returns the problems between values of this section, each a sentence."""
        return []


class Secret(msgspec.Struct, frozen=True):
    """A value that is only read from the environment and prints as stars."""

    value: str = ""

    def __repr__(self) -> str:
        """Returns stars, or nothing where the secret is unset."""
        return "Secret('********')" if self.value else "Secret('')"


@dataclass(frozen=True, kw_only=True)
class SettingDoc:
    """One setting, documented. `choices`: the allowed words, if there are only a few.

    `is_table`: its value is a table of names and values.
    """

    section: str
    name: str
    environment: str
    choices: tuple[str, ...]
    default: Any
    description: str
    is_secret: bool
    is_table: bool


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return field.default_factory() if field.default_factory is not msgspec.NODEFAULT else None


def environment_name(section: str, name: str) -> str:
    """Returns the environment variable of a setting: CARPOOL_SECTION_NAME."""
    return f"{ENVIRONMENT_PREFIX}{section}_{name}".upper()


def describe(section: str, kind: type[Settings]) -> list[SettingDoc]:
    """Returns the documentation of every setting of a section, in the order of its fields."""
    hints = get_type_hints(kind, include_extras=True)
    docs = []
    for field in msgspec.structs.fields(kind):
        hint = hints[field.name]
        description = ""
        if get_origin(hint) is Annotated:
            base, *extras = get_args(hint)
            description = next(
                (meta.description or "" for meta in extras if isinstance(meta, msgspec.Meta)), ""
            )
        else:
            base = hint
        docs.append(
            SettingDoc(
                section=section,
                name=field.name,
                environment=environment_name(section, field.name),
                choices=tuple(map(str, get_args(base))) if get_origin(base) is Literal else (),
                default=_default(field),
                description=description,
                is_secret=base is Secret,
                is_table=get_origin(base) is dict,
            )
        )
    return docs

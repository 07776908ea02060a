"""Settings: frozen sections of values from defaults, a TOML file, the environment and flags.

They are validated once, at start, all together, and passed in: there are no globals.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from carpool.errors import ConfigError

T = TypeVar("T", bound=msgspec.Struct)
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
    "gateway",
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


def environment_name(section: str, name: str) -> str:
    """Returns the environment variable of a setting: CARPOOL_SECTION_NAME."""
    return f"{ENVIRONMENT_PREFIX}{section}_{name}".upper()


def describe(section: str, kind: type[Settings]) -> list[SettingDoc]:
    """Returns the documentation of every setting of a section, in the order of its fields."""
    hints, defaults, docs = get_type_hints(kind, include_extras=True), kind(), list[SettingDoc]()
    for field in msgspec.structs.fields(kind):
        hint = hints[field.name]
        base, *metas = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        docs.append(
            SettingDoc(
                section=section,
                name=field.name,
                environment=environment_name(section, field.name),
                choices=tuple(map(str, get_args(base))) if get_origin(base) is Literal else (),
                default=getattr(defaults, field.name),
                description=next((meta.description or "" for meta in metas), ""),
                is_secret=base is Secret,
                is_table=get_origin(base) is dict,
            )
        )
    return docs


CONFIG_VARIABLE = "CARPOOL_CONFIG"


def settings_file(named: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Returns the settings file `named`, or the one of `CARPOOL_CONFIG`; None: there is neither.

    Raises `ConfigError` where the file does not exist.
    """
    file = named or (Path(found) if (found := environ.get(CONFIG_VARIABLE)) else None)
    if file is not None and not file.exists():
        raise ConfigError(f"there is no settings file {file}; check its name, or {CONFIG_VARIABLE}")
    return file


def section_kinds(kind: type[msgspec.Struct]) -> dict[str, type[Settings]]:
    """Returns the sections of a struct of settings by name, in order."""
    return {field.name: field.type for field in msgspec.structs.fields(kind)}


def load_settings(
    kind: type[T],
    *,
    file: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, Mapping[str, Any]] | None = None,
) -> T:
    """Returns settings of `kind`, a struct whose fields are sections (`Settings`).

    `flags`: values by section and name. Sections of other programs are skipped.
    Raises `ConfigError` that lists all problems, each with the place where it was set.
    """
    sections = section_kinds(kind)
    problems: list[str] = []
    sources = (
        _from_file(file, sections, problems) if file is not None else {},
        _from_environment(environ, sections, problems),
        flags or {},
    )
    values: dict[str, dict[str, Any]] = {name: {} for name in sections}
    for source in sources:
        for section, given in source.items():
            values[section].update(given)
    built: dict[str, Settings] = {}
    for name, section_kind in sections.items():
        _read_tables(name, section_kind, values[name], problems)
        try:
            built[name] = msgspec.convert(values[name], section_kind, strict=False)
            problems += [f"[{name}] {problem}" for problem in built[name].check()]
        except msgspec.ValidationError as error:
            problems.append(f"[{name}] {error}{_choices(error, name, section_kind)}")
    if problems:
        raise ConfigError(
            "the settings do not fit:\n  "
            + "\n  ".join(problems)
            + "\n`carpool config` documents each one."
        )
    return kind(**built)


def _read_tables(
    section: str, kind: type[Settings], values: dict[str, Any], problems: list[str]
) -> None:
    """Replaces the text of a table, from the environment or a flag, by its values."""
    for doc in describe(section, kind):
        text = values.get(doc.name)
        if doc.is_table and isinstance(text, str):
            try:
                values[doc.name] = msgspec.json.decode(text or "{}", type=dict[str, Any])
            except msgspec.DecodeError:
                problems.append(f"[{section}] {doc.name}: write a JSON object: {{name: value}}")
                del values[doc.name]


def _choices(error: msgspec.ValidationError, section: str, kind: type[Settings]) -> str:
    """Returns the allowed words of the place that `error` names; msgspec does not list them."""
    for doc in describe(section, kind):
        if doc.choices and str(error).endswith(f"`$.{doc.name}`"):
            return f": it must be one of {', '.join(doc.choices)}"
    return ""


def _from_file(
    file: Path, sections: Mapping[str, type[Settings]], problems: list[str]
) -> dict[str, dict[str, Any]]:
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot read the settings file {file}: {error.strerror}; check --config"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the settings file {file} is not valid TOML: {error}") from error
    values = {}
    for section, given in content.items():
        if section in sections and isinstance(given, dict):
            docs = describe(section, sections[section])
            secrets = [doc for doc in docs if doc.is_secret and doc.name in given]
            problems += [
                f"[{section}] {doc.name}: a secret is read from {doc.environment} only, never from "
                "a file"
                for doc in secrets
            ]
            for doc in secrets:
                del given[doc.name]
            values[section] = given
        elif section in sections:
            problems.append(f"{section} in {file} must be a table: write [{section}]")
        elif section not in SECTIONS:
            problems.append(
                f"[{section}] in {file} is not a section; there are: {', '.join(sections)}"
            )
    return values


def _from_environment(
    environ: Mapping[str, str], sections: Mapping[str, type[Settings]], problems: list[str]
) -> dict[str, dict[str, Any]]:
    values: dict[str, dict[str, Any]] = {section: {} for section in sections}
    known = {
        doc.environment: doc
        for section, kind in sections.items()
        for doc in describe(section, kind)
    }
    prefixes = tuple(f"{ENVIRONMENT_PREFIX}{section}_".upper() for section in sections)
    for variable in sorted(environ):
        doc = known.get(variable)
        if doc is not None:
            text = environ[variable]
            values[doc.section][doc.name] = Secret(text) if doc.is_secret else text
        elif variable.startswith(prefixes):
            problems.append(f"{variable} is in the environment but is no setting; is it misspelt?")
    return values

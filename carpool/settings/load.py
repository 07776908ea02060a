"""Reads settings: defaults, then a TOML file, then the environment, then flags."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from carpool.errors import ConfigError
from carpool.settings.renamed import modernised, old_names
from carpool.settings.sections import (
    ENVIRONMENT_PREFIX,
    Secret,
    Settings,
    describe,
    environment_name,
)

T = TypeVar("T", bound=msgspec.Struct)


def warn_on_stderr(message: str) -> None:
    """Prints a warning about settings: logs are not set up yet when settings are read."""
    print(f"warning: {message}", file=sys.stderr)  # noqa: T201


def load_settings(
    kind: type[T],
    *,
    file: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, Mapping[str, Any]] | None = None,
    elsewhere: Collection[str] = (),
    warn: Callable[[str], None] = warn_on_stderr,
) -> T:
    """Returns settings of `kind`, a struct whose fields are sections (`Settings`).

    `flags` maps section to name to value; None means that the flag was not given. `elsewhere` names
    sections of other programs, which are skipped. `warn` gets a sentence for each
    setting of an earlier version. Raises `ConfigError` that lists everything that is wrong, each
    with where it was set.
    """
    sections: dict[str, type[Settings]] = {
        field.name: field.type for field in msgspec.structs.fields(kind)
    }
    values: dict[str, dict[str, Any]] = {name: {} for name in sections}
    problems: list[str] = []
    if file is not None:
        _read_file(file, sections, frozenset(elsewhere), values, problems)
    _modernise(values, sections, warn)
    from_environment: dict[str, dict[str, Any]] = {name: {} for name in sections}
    _read_environment(environ, sections, from_environment, problems)
    _modernise(from_environment, sections, warn)
    for source in (from_environment, _modern_flags(flags or {}, sections, warn)):
        for section, given in source.items():
            values[section].update(given)
    built: dict[str, Settings] = {}
    for name, section_kind in sections.items():
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


def _modernise(
    values: dict[str, dict[str, Any]],
    sections: Mapping[str, type[Settings]],
    warn: Callable[[str], None],
) -> None:
    for section, kind in sections.items():
        values[section] = modernised(section, kind, values[section], warn)


def _modern_flags(
    flags: Mapping[str, Mapping[str, Any]],
    sections: Mapping[str, type[Settings]],
    warn: Callable[[str], None],
) -> dict[str, dict[str, Any]]:
    return {
        section: modernised(
            section,
            sections[section],
            {name: value for name, value in given.items() if value is not None},
            warn,
        )
        for section, given in flags.items()
    }


def _choices(error: msgspec.ValidationError, section: str, kind: type[Settings]) -> str:
    """Returns the allowed words of the place that `error` names; msgspec does not list them."""
    for doc in describe(section, kind):
        if doc.choices and str(error).endswith(f"`$.{doc.name}`"):
            return f": it must be one of {', '.join(doc.choices)}"
    return ""


def _read_file(
    file: Path,
    sections: Mapping[str, type[Settings]],
    elsewhere: frozenset[str],
    values: dict[str, dict[str, Any]],
    problems: list[str],
) -> None:
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot read the settings file {file}: {error.strerror}; check --config"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the settings file {file} is not valid TOML: {error}") from error
    for section, given in content.items():
        if section not in sections and section in elsewhere:
            continue
        if section not in sections:
            problems.append(
                f"[{section}] in {file} is not a section; there are: {', '.join(sections)}"
            )
        elif not isinstance(given, dict):
            problems.append(f"{section} in {file} must be a table: write [{section}]")
        else:
            secrets = {
                doc.name for doc in describe(section, sections[section]) if doc.is_secret
            } & set(given)
            problems += [
                f"[{section}] {name}: a secret is read from {environment_name(section, name)} "
                "only, never from a file"
                for name in sorted(secrets)
            ]
            values[section].update(
                {name: value for name, value in given.items() if name not in secrets}
            )


def _read_environment(
    environ: Mapping[str, str],
    sections: Mapping[str, type[Settings]],
    values: dict[str, dict[str, Any]],
    problems: list[str],
) -> None:
    known = {}
    old = {}
    for section, section_kind in sections.items():
        known.update({doc.environment: doc for doc in describe(section, section_kind)})
        for name in old_names(section_kind):
            old[environment_name(section, name)] = (section, name)
    prefixes = tuple(f"{ENVIRONMENT_PREFIX}{section}_".upper() for section in sections)
    for variable in sorted(environ):
        doc = known.get(variable)
        if doc is not None:
            text = environ[variable]
            values[doc.section][doc.name] = Secret(text) if doc.is_secret else text
        elif variable in old:
            section, name = old[variable]
            values[section][name] = environ[variable]
        elif variable.startswith(prefixes):
            problems.append(f"{variable} is in the environment but is no setting; is it misspelt?")

"""Settings of an earlier version: renamed or deprecated ones are accepted, removed ones ignored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from carpool.settings.sections import Settings


def modernised(
    section: str, kind: type[Settings], given: Mapping[str, Any], warn: Callable[[str], None]
) -> dict[str, Any]:
    """Returns `given` with current names and values; warns about each change.

    A current name has priority over an old one.
    """
    values = {name: value for name, value in given.items() if name not in kind.RENAMED}
    for old, new in kind.RENAMED.items():
        if old in given:
            warn(f"[{section}] {old} is now called {new}; the old name is still accepted")
            values.setdefault(new, given[old])
    for name, reason in kind.REMOVED.items():
        if values.pop(name, None) is not None:
            warn(f"[{section}] {name} is ignored: {reason}")
    for name, words in kind.RENAMED_VALUES.items():
        if str(values.get(name)) in words:
            today = words[str(values[name])]
            warn(f"[{section}] {name} = {values[name]!r} is now written {today!r}")
            values[name] = today
    for name, advice in kind.DEPRECATED.items():
        if values.get(name):
            warn(f"[{section}] {name} {advice}")
    return values


def old_names(kind: type[Settings]) -> tuple[str, ...]:
    """Returns the names of a section that are accepted in addition to the current ones."""
    return (*kind.RENAMED, *kind.REMOVED)


def names_of(kind: type[Settings], name: str) -> tuple[str, ...]:
    """Returns the names under which a setting can be given, that of today first."""
    return (name, *(old for old, new in kind.RENAMED.items() if new == name))

"""Settings of earlier versions: a renamed one is accepted, a removed one is ignored, both warn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from carpool.settings import Settings, environment_name, load_settings
from cli.all_settings import CarpoolSettings

SECTIONS: dict[str, type[Settings]] = {
    field.name: field.type for field in msgspec.structs.fields(CarpoolSettings)
}
RENAMED = [
    (section, old, new) for section, kind in SECTIONS.items() for old, new in kind.RENAMED.items()
]
RENAMED_VALUES = [
    (section, name, old, new)
    for section, kind in SECTIONS.items()
    for name, words in kind.RENAMED_VALUES.items()
    for old, new in words.items()
]
REMOVED = [(section, name) for section, kind in SECTIONS.items() for name in kind.REMOVED]


def load(tmp_path: Path, toml: str = "", **environ: str) -> tuple[CarpoolSettings, list[str]]:
    file = tmp_path / "carpool.toml"
    file.write_text(toml)
    warnings: list[str] = []
    settings = load_settings(CarpoolSettings, file=file, environ=environ, warn=warnings.append)
    return settings, warnings


def default_of(section: str, name: str) -> Any:
    return getattr(SECTIONS[section](), name)


@pytest.mark.parametrize(("section", "old", "new"), RENAMED)
def test_a_renamed_setting_is_accepted_from_a_file_and_from_the_environment(
    tmp_path: Path, section: str, old: str, new: str
) -> None:
    value = default_of(section, new)
    toml = f"[{section}]\n{old} = {msgspec.json.encode(value).decode()}\n"
    variable = {environment_name(section, old): str(value)}
    for settings, warnings in (load(tmp_path, toml), load(tmp_path, **variable)):
        assert getattr(getattr(settings, section), new) == value
        assert [f"[{section}] {old} is now called {new}" in each for each in warnings] == [True]


@pytest.mark.parametrize(("section", "name", "old", "new"), RENAMED_VALUES)
def test_a_renamed_value_is_accepted(
    tmp_path: Path, section: str, name: str, old: str, new: str
) -> None:
    settings, warnings = load(tmp_path, f'[{section}]\n{name} = "{old}"\n')
    assert getattr(getattr(settings, section), name) == new
    assert warnings == [f"[{section}] {name} = {old!r} is now written {new!r}"]


@pytest.mark.parametrize(("section", "name"), REMOVED)
def test_a_removed_setting_is_ignored(tmp_path: Path, section: str, name: str) -> None:
    settings, warnings = load(tmp_path, f"[{section}]\n{name} = 1\n")
    assert getattr(settings, section) == SECTIONS[section]()
    assert len(warnings) == 1 and f"[{section}] {name} is ignored" in warnings[0]


def test_the_instance_id_of_a_member_is_read_from_its_old_variable(tmp_path: Path) -> None:
    settings, warnings = load(tmp_path, CARPOOL_KAFKA_SLOT="one")
    assert settings.kafka.instance_id == "one" and len(warnings) == 1

"""Settings come from defaults, file, environment and flags; all problems are listed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import pytest

from carpool.errors import ConfigError
from carpool.kafka.settings import KafkaSettings
from carpool.settings import Secret, Settings, load_settings
from carpool.telemetry.settings import LogSettings


class Window(Settings, frozen=True, kw_only=True):
    queries_min: Annotated[int, msgspec.Meta(ge=1, description="Least queries.")] = 20
    queries_max: Annotated[int, msgspec.Meta(ge=1, description="Most queries.")] = 100
    eager: Annotated[bool, msgspec.Meta(description="Whether to hurry.")] = False
    token: Annotated[Secret, msgspec.Meta(description="A secret.")] = Secret()

    def check(self) -> list[str]:
        return ["queries_min is above queries_max"] if self.queries_min > self.queries_max else []


class All(msgspec.Struct, frozen=True, kw_only=True):
    window: Window
    log: LogSettings


def load(
    tmp_path: Path,
    toml: str = "",
    environ: dict[str, str] | None = None,
    **flags: dict[str, object],
) -> All:
    file = tmp_path / "carpool.toml"
    file.write_text(toml)
    return load_settings(All, file=file, environ=environ or {}, flags=flags)


def test_later_sources_win_over_earlier_ones(tmp_path: Path) -> None:
    toml = "[window]\nqueries_min = 1\nqueries_max = 2\neager = true\n"
    found = load(tmp_path, toml, {"CARPOOL_WINDOW_QUERIES_MAX": "3"}, window={"queries_max": 4})
    assert (found.window.queries_min, found.window.queries_max, found.window.eager) == (1, 4, True)
    assert load(tmp_path, toml, {"CARPOOL_WINDOW_QUERIES_MAX": "3"}).window.queries_max == 3
    assert load(tmp_path).window == Window()
    assert load(tmp_path, environ={"CARPOOL_WINDOW_EAGER": "true"}).window.eager is True


def test_all_problems_are_listed_together(tmp_path: Path) -> None:
    toml = '[window]\nqueries_min = 200\n[log]\nlevel = "loud"\n[oven]\nhot = 1\n'
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, toml, {"CARPOOL_WINDOW_QUEREIS_MAX": "3"})
    text = str(caught.value)
    for part in (
        "queries_min is above queries_max",
        "loud",
        "[oven]",
        "CARPOOL_WINDOW_QUEREIS_MAX",
        "misspelt",
    ):
        assert part in text, text


def test_an_unknown_word_is_refused_with_the_allowed_words(tmp_path: Path) -> None:
    for toml in ('[log]\nlevel = "loud"\n', "[log]\nlevel = 3\n"):
        with pytest.raises(
            ConfigError, match=r"\[log\].*level`: it must be one of debug, info, warning, error\n"
        ):
            load(tmp_path, toml)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "[window]\nqueries_min = 0\n")
    assert "one of" not in str(caught.value)


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("[window]\nqueries_min = 0\n", "window"),
        ('[window]\nqueries_min = "many"\n', "queries_min"),
        ("[window]\nqueries = 3\n", "queries"),
        ("window = 3\n", "must be a table"),
        ("[window\n", "not valid TOML"),
    ],
)
def test_a_bad_file_is_refused_with_the_place(tmp_path: Path, toml: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(tmp_path, toml)
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        load_settings(All, file=tmp_path / "nowhere.toml", environ={})


def test_a_secret_comes_from_the_environment_only_and_never_shows(tmp_path: Path) -> None:
    found = load(tmp_path, environ={"CARPOOL_WINDOW_TOKEN": "s3cret"})
    assert found.window.token.value == "s3cret"
    assert "s3cret" not in repr(found)
    with pytest.raises(ConfigError, match="CARPOOL_WINDOW_TOKEN only"):
        load(tmp_path, '[window]\ntoken = "s3cret"\n')


def test_sasl_without_a_user_is_refused() -> None:
    assert KafkaSettings(security_protocol="SASL_SSL").check()
    assert not KafkaSettings(
        security_protocol="SASL_SSL", sasl_mechanism="SCRAM-SHA-512", sasl_username="u"
    ).check()
    assert KafkaSettings(bootstrap=" ").check()

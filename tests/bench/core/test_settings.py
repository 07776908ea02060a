"""Options reach a run, and settings the services and the benchmark's own clients."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from bench.core.kafka import kafka_settings
from bench.core.options import command_of
from bench.core.stack import parse_settings
from carpool.errors import ConfigError
from carpool.settings import environment_name
from cli.settings import CarpoolSettings

NO_SETTINGS = {"CARPOOL_DATA", "CARPOOL_CGROUP", "CARPOOL_CGROUPS", "CARPOOL_KAFKA"}


def test_every_setting_that_a_benchmark_names_exists() -> None:
    known = {
        environment_name(section.name, field.name)
        for section in msgspec.structs.fields(CarpoolSettings)
        for field in msgspec.structs.fields(section.type)
    }
    for path in Path("bench").rglob("*.py"):
        named = set(re.findall(r"CARPOOL_[A-Z_]*[A-Z]", path.read_text()))
        assert named - NO_SETTINGS <= known, path


def test_settings_of_services_become_their_environment() -> None:
    assert parse_settings(["grouper.policy=greedy", "kafka.prefix=a=b"]) == {
        "CARPOOL_GROUPER_POLICY": "greedy",
        "CARPOOL_KAFKA_PREFIX": "a=b",
    }
    for wrong in ("grouper.policy", "policy=greedy", ".x=1", "grouper.=1"):
        with pytest.raises(ConfigError, match=r"SECTION\.NAME=VALUE"):
            parse_settings([wrong])


def test_the_kafka_section_reaches_the_benchmark_and_flags_override_it() -> None:
    environ = {"CARPOOL_KAFKA_PARTITIONS": "1", "CARPOOL_KAFKA_BOOTSTRAP": "elsewhere:1"}
    kafka = kafka_settings(environ | {"CARPOOL_LLM_ENGINE": "none"}, bootstrap="127.0.0.1:9")
    assert (kafka.partitions, kafka.bootstrap) == (1, "127.0.0.1:9")
    with pytest.raises(ConfigError, match="partitions"):
        kafka_settings({"CARPOOL_KAFKA_PARTITIONS": "none"}, bootstrap="127.0.0.1:9")


# ---- a command that is made of a record of options


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Does it pay?"""

    rate_per_s: Annotated[float, typer.Option("--rate", min=1)] = 5.0
    names: Annotated[list[str], typer.Option("--name")] = []


@pytest.mark.parametrize(
    ("arguments", "status", "asked"),
    [
        ([], 0, Options()),
        (["--rate", "2", "--name", "a", "--name", "b"], 1, Options(rate_per_s=2, names=["a", "b"])),
        (["--rate", "0"], 2, None),
    ],
)
def test_options_reach_the_run_and_a_broken_promise_ends_with_1(
    arguments: list[str],
    status: int,
    asked: Options | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []

    def run(options: Options) -> bool:
        seen.append(options)
        return not options.names

    module = ModuleType("started")
    vars(module)["run"] = run
    monkeypatch.setitem(sys.modules, "started", module)
    app = typer.Typer()
    app.command()(command_of(Options, "started"))
    assert CliRunner().invoke(app, arguments).exit_code == status
    assert seen == ([] if asked is None else [asked])
    assert "Does it pay?" in CliRunner().invoke(app, ["--help"]).output

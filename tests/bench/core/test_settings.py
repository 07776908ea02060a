"""Settings of the services reach the services and the benchmark's own clients."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from bench.core.kafka import kafka_settings
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

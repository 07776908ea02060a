"""What is set for the services is set for the benchmark's own clients."""

from __future__ import annotations

import pytest

from bench.core.kafka_settings import kafka_section
from carpool.errors import ConfigError


def test_settings_of_the_section_reach_it_and_what_the_benchmark_says_goes_before() -> None:
    environ = {
        "CARPOOL_KAFKA_PARTITIONS": "1",
        "CARPOOL_KAFKA_BOOTSTRAP": "elsewhere:1",
        "CARPOOL_LLM_ENGINE": "none",
    }
    kafka = kafka_section(environ, bootstrap="127.0.0.1:9", group_prefix="g")
    assert (kafka.partitions, kafka.bootstrap, kafka.group_prefix) == (1, "127.0.0.1:9", "g")


def test_a_wrong_one_is_said() -> None:
    with pytest.raises(ConfigError, match="partitions"):
        kafka_section({"CARPOOL_KAFKA_PARTITIONS": "none"}, bootstrap="127.0.0.1:9")

"""Fresh brokers and one small index for end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from carpool.kafka.admin import create_topics
from carpool.kafka.embedded import EmbeddedBroker
from carpool.kafka.settings import KafkaSettings
from carpool.testing.kafka import KafkaServer
from tests.e2e.support import build_index


@pytest.fixture(scope="session")
def small_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of 400 passages over the hashing model."""
    return build_index(tmp_path_factory.mktemp("small-index"))


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def fresh_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a broker of the test's own, with all topics."""
    with (
        EmbeddedBroker()
        if request.param == "embedded"
        else KafkaServer(tmp_path / "kafka") as broker
    ):
        create_topics(KafkaSettings(bootstrap=broker.bootstrap))
        yield broker.bootstrap

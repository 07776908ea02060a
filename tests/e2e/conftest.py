"""One small index for end-to-end tests, and a broker for one that is not about Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.core.embedded_broker import EmbeddedBroker
from carpool.kafka.admin import create_topics
from carpool.kafka.settings import KafkaSettings
from tests.e2e.support import build_index


@pytest.fixture(scope="session")
def small_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of 400 passages over the hashing model."""
    return build_index(tmp_path_factory.mktemp("small-index"))


@pytest.fixture
def bootstrap() -> Iterator[str]:
    """The address of a new embedded broker with all topics."""
    with EmbeddedBroker() as broker:
        create_topics(KafkaSettings(bootstrap=broker.bootstrap))
        yield broker.bootstrap

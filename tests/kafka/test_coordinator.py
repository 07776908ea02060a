"""What the client of the coordinators raises."""

from __future__ import annotations

import time

import pytest
from kafka.errors import ClusterAuthorizationFailedError, KafkaError, UnsupportedVersionError

from carpool.errors import CarpoolError, DeploymentError, RetryableError
from carpool.kafka.coordinator import CoordinatorClient
from carpool.kafka.embedded import free_port
from carpool.kafka.settings import KafkaSettings


def test_silent_brokers_are_an_error_within_the_request_time_out() -> None:
    settings = KafkaSettings(bootstrap=f"127.0.0.1:{free_port()}", request_timeout_ms=1_000)
    began_s = time.monotonic()
    with pytest.raises(RetryableError, match="did not answer"):
        CoordinatorClient(settings).unfinished(["somebody"])
    assert time.monotonic() - began_s < 10


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (ClusterAuthorizationFailedError(), DeploymentError, "Describe on transactional id"),
        (UnsupportedVersionError(), DeploymentError, "Kafka 3.0"),
        (KafkaError("the coordinator moves"), RetryableError, "the coordinator moves"),
    ],
)
def test_an_error_says_whether_to_try_again(
    error: KafkaError, raised: type[CarpoolError], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise error

    monkeypatch.setattr("carpool.kafka.coordinator.KafkaAdminClient", refuse)
    with pytest.raises(raised, match=message):
        CoordinatorClient(KafkaSettings()).unfinished(["somebody"])

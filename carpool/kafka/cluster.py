"""Asks a cluster for its topics and brokers, and finds out why none answers."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata

from carpool.errors import CarpoolError, ConfigError, RetryableError
from carpool.kafka.client_config import client_config
from carpool.kafka.settings import KafkaSettings

LOOK_S = 3.0
"""How long a new client may take to say why it cannot connect."""
UNTOLD = (KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT)
"""Errors that do not say why."""


def quiet_admin(settings: KafkaSettings) -> AdminClient:
    """Returns an admin client that logs nothing: every failure is raised."""
    return AdminClient(client_config(settings) | {"log_level": 0})


def cluster_metadata(
    client: AdminClient | Consumer,
    settings: KafkaSettings,
    timeout_s: float,
    topic: str | None = None,
) -> ClusterMetadata:
    """Returns the metadata of one topic, or of all. Blocks.

    Raises `ConfigError` when the brokers refuse these credentials or certificates, and
    `RetryableError` when none answers. Some brokers create a topic that a request names.
    """
    try:
        return client.list_topics(topic, timeout=timeout_s)
    except KafkaException as error:
        raise no_broker_answers(settings, error) from error


def is_of_right(error: KafkaError) -> bool:
    """Returns whether the brokers refuse a call because these credentials lack a right."""
    return bool(error.name().endswith("_AUTHORIZATION_FAILED"))


def told(error: KafkaError, right: str) -> str:
    """Returns an error in words; where a right is missing, with the `right` of the call."""
    missing = f"Kafka refuses a right ({right}): {error.str()}; allow what `carpool acls` prints"
    return missing if is_of_right(error) else str(error.str())


def no_broker_answers(settings: KafkaSettings, error: KafkaException) -> CarpoolError:
    """Returns the error of a call that reached no broker, with the reason. Blocks for `LOOK_S`."""
    address, found = settings.bootstrap, _connection_error(settings)
    text = (found or error.args[0]).str()
    if found is not None and found.code() == KafkaError._AUTHENTICATION:
        return ConfigError(
            f"the brokers at {address} refuse these credentials: {text}. Check [kafka] "
            "sasl_mechanism and sasl_username, and CARPOOL_KAFKA_SASL_PASSWORD (OAUTHBEARER: "
            "[kafka.librdkafka] sasl.oauthbearer.*, and CARPOOL_KAFKA_OAUTHBEARER_CLIENT_SECRET)"
        )
    if "certificate verify failed" in text:
        return ConfigError(
            f"the certificate of the broker at {address} cannot be trusted: {text}. Check that "
            "[kafka] ssl_ca_location is its authority, and that its certificate has not expired "
            "and names this host"
        )
    if "alert" in text and "SSL" in text:
        return ConfigError(
            f"the brokers at {address} refuse the certificate of this client: {text}. It has "
            "expired, or an authority that they do not know has signed it, or there is none: see "
            "`openssl x509 -noout -dates -issuer -in FILE`, and set "
            "librdkafka.ssl.certificate.location"
        )
    if found is not None and (found.code() == KafkaError._SSL or "SSL" in text):
        return ConfigError(
            f"no TLS connection to {address}: {text}. Check [kafka] security_protocol and the port"
        )
    return RetryableError(
        f"no broker answers at {address}: {text}. Start one (`carpool up` starts its own), or give "
        "the right address with --bootstrap or CARPOOL_KAFKA_BOOTSTRAP."
    )


def _connection_error(settings: KafkaSettings) -> KafkaError | None:
    """Returns the first error of a new client that says why it cannot connect; None: there is none.

    The call that failed knows only that its time is over.
    """
    errors: list[KafkaError] = []
    admin = AdminClient(client_config(settings) | {"log_level": 0, "error_cb": errors.append})
    until_s = time.monotonic() + LOOK_S
    while time.monotonic() < until_s:
        admin.poll(0.1)
        for error in errors:
            if error.code() not in UNTOLD:
                return error
    return None

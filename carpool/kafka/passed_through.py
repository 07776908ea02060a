"""Decides which settings of librdkafka `[kafka.librdkafka]` may contain. Pure.

All may be set, except those that Carpool's promises depend on, those that have a setting of their
own, and secrets. librdkafka itself refuses unknown names and wrong values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_TYPED = "it has a setting of its own: [kafka] "
_REASONS = {
    "the delivery guarantee depends on it": "acks request.required.acks delivery.timeout.ms "
    "message.timeout.ms message.send.max.retries retries enable.auto.commit auto.commit.enable "
    "enable.auto.offset.store enable.gapless.guarantee enable.idempotence isolation.level "
    "max.in.flight max.in.flight.requests.per.connection transaction.timeout.ms",
    "it identifies the member of the group": "client.id group.instance.id transactional.id",
    "members of a group must assign in the same way": "group.protocol.type group.remote.assignor "
    "partition.assignment.strategy",
    "`carpool topics create` makes the topics": "allow.auto.create.topics",
    "a lost position must stop the service, not skip or repeat records": "auto.offset.reset",
    "the loop waits for every delivery report": "delivery.report.only.error",
    "lag and readiness are computed from it": "enable.partition.eof",
    "it follows from the largest record of the topics": "fetch.max.bytes message.max.bytes",
    "it limits what one compressed record may unpack to": "receive.message.max.bytes",
    "it follows from session.timeout.ms": "heartbeat.interval.ms",
    "each query is answered in the partition that Carpool chose for its key": "partitioner",
    "a transaction waits that long for the markers of the one before it": "retry.backoff.ms",
    "records would stay in the process": "test.mock.num.brokers",
    _TYPED + "bootstrap": "bootstrap.servers metadata.broker.list",
    _TYPED + "prefix": "group.id",
    _TYPED + "sasl_mechanism": "sasl.mechanism sasl.mechanisms",
    _TYPED + "sasl_username": "sasl.username",
    _TYPED + "security_protocol": "security.protocol",
    _TYPED + "ssl_ca_location": "ssl.ca.location",
}
DENIED: Mapping[str, str] = {
    name: reason for reason, names in _REASONS.items() for name in names.split()
}
"""Settings that are refused, with the reason."""

SECRETS: Mapping[str, str] = {
    "sasl.password": "CARPOOL_KAFKA_SASL_PASSWORD",
    "sasl.oauthbearer.client.secret": "CARPOOL_KAFKA_OAUTHBEARER_CLIENT_SECRET",
    "sasl.oauthbearer.client.credentials.client.secret": "CARPOOL_KAFKA_OAUTHBEARER_CLIENT_SECRET",
    "ssl.key.password": "CARPOOL_KAFKA_SSL_KEY_PASSWORD",
}
"""Settings that are secret, with the environment variable that they are read from."""
SECRET_WORDS = ("password", "passphrase", "secret", "key.pem")


def flattened(given: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns settings by full name; TOML reads a name without quotes as tables inside tables."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, Mapping):
            found |= flattened(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def names_token_source(given: Mapping[str, Any]) -> bool:
    """Returns whether the settings say where tokens of OAUTHBEARER come from."""
    found = {name: str(value).lower() for name, value in flattened(given).items()}
    return (
        found.get("sasl.oauthbearer.method") == "oidc"
        or found.get("enable.sasl.oauthbearer.unsecure.jwt") == "true"
    )


def refusals(given: Mapping[str, Any]) -> Iterator[str]:
    """Yields a sentence for each setting that may not be given, without its value."""
    for name, value in flattened(given).items():
        if name in SECRETS:
            yield f"librdkafka.{name}: a secret is read from {SECRETS[name]} only"
        elif any(word in name for word in SECRET_WORDS):
            yield (
                f"librdkafka.{name}: a secret may not stand in settings; use ssl.key.location, and "
                f"{SECRETS['ssl.key.password']} for the password of that file"
            )
        elif name in DENIED:
            yield f"librdkafka.{name} cannot be set: {DENIED[name]}"
        elif name.endswith("_cb"):
            yield f"librdkafka.{name} cannot be set: it is a function of the program"
        elif not isinstance(value, str | int | float | bool):
            yield f"librdkafka.{name}: a value is a text, a number, true or false"

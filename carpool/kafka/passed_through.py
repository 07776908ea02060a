"""Decides which settings of librdkafka `[kafka.librdkafka]` may contain. Pure.

All may be set, except those that Carpool's promises depend on, those that have a setting of their
own, and secrets. librdkafka itself refuses unknown names and wrong values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_PROMISE = "the delivery guarantee depends on it"
_MEMBER = "it identifies the member of the group"
_ORDER = "each query is answered in the partition that Carpool chose for its key"
_TYPED = "it has a setting of its own: [kafka] "

DENIED: Mapping[str, str] = {
    "acks": _PROMISE,
    "request.required.acks": _PROMISE,
    "allow.auto.create.topics": "`carpool topics create` makes the topics",
    "auto.offset.reset": "a lost position must stop the service, not skip or repeat records",
    "bootstrap.servers": _TYPED + "bootstrap",
    "metadata.broker.list": _TYPED + "bootstrap",
    "client.id": _MEMBER,
    "delivery.report.only.error": "the loop waits for every delivery report",
    "delivery.timeout.ms": _PROMISE,
    "message.timeout.ms": _PROMISE,
    "message.send.max.retries": _PROMISE,
    "retries": _PROMISE,
    "enable.auto.commit": _PROMISE,
    "auto.commit.enable": _PROMISE,
    "enable.auto.offset.store": _PROMISE,
    "enable.gapless.guarantee": _PROMISE,
    "enable.idempotence": _PROMISE,
    "enable.partition.eof": "lag and readiness are computed from it",
    "fetch.max.bytes": "it follows from the largest record of the topics",
    "receive.message.max.bytes": "it limits what one compressed record may unpack to",
    "group.id": _TYPED + "prefix",
    "group.instance.id": _MEMBER,
    "group.protocol.type": "members of a group must assign in the same way",
    "group.remote.assignor": "members of a group must assign in the same way",
    "heartbeat.interval.ms": "it follows from session.timeout.ms",
    "isolation.level": _PROMISE,
    "max.in.flight": _PROMISE,
    "max.in.flight.requests.per.connection": _PROMISE,
    "message.max.bytes": "it follows from the largest record of the topics",
    "partition.assignment.strategy": "members of a group must assign in the same way",
    "partitioner": _ORDER,
    "retry.backoff.ms": "a transaction waits that long for the markers of the one before it",
    "sasl.mechanism": _TYPED + "sasl_mechanism",
    "sasl.mechanisms": _TYPED + "sasl_mechanism",
    "sasl.username": _TYPED + "sasl_username",
    "security.protocol": _TYPED + "security_protocol",
    "ssl.ca.location": _TYPED + "ssl_ca_location",
    "test.mock.num.brokers": "records would stay in the process",
    "transaction.timeout.ms": _PROMISE,
    "transactional.id": _MEMBER,
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

"""Asks the coordinators of groups and transactions what librdkafka cannot ask (ADR 0012).

This is the only user of kafka-python. Each answer is that of a coordinator, never a conclusion from
a time-out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from kafka import KafkaAdminClient
from kafka import TopicPartition as TheirPartition
from kafka.admin import TransactionState
from kafka.errors import (
    AuthorizationError,
    KafkaError,
    TransactionalIdNotFoundError,
    UnsupportedVersionError,
)

from carpool.errors import ConfigError, DeploymentError, RetryableError
from carpool.kafka.client_config import RETRY_BACKOFF_MS, security_config
from carpool.kafka.clients import Position
from carpool.kafka.fencing import Transaction
from carpool.kafka.oauth_tokens import token_provider
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings

T = TypeVar("T")

logging.getLogger("kafka").setLevel(logging.CRITICAL)  # its errors are raised

UNFINISHED_STATES = frozenset(
    {
        TransactionState.ONGOING,
        TransactionState.PREPARE_COMMIT,
        TransactionState.PREPARE_ABORT,
        TransactionState.PREPARE_EPOCH_FENCE,
    }
)
"""States in which records or offsets of a transaction are not decided for all readers."""


class CoordinatorClient:
    """Keeps its connections until `close`. Every call blocks; one thread at a time.

    Every call raises `RetryableError` when no coordinator answers within `request_timeout_ms`, and
    `DeploymentError` when these credentials may not ask, or the brokers are older than Kafka 3.0.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        """Connects with the first call. Raises `ConfigError` for what kafka-python cannot do."""
        self._settings = settings
        self._config = coordinator_config(security_config(settings)) | {
            "client_id": "carpool-coordinator",
            "request_timeout_ms": settings.request_timeout_ms,
            "bootstrap_timeout_ms": settings.request_timeout_ms,
            "retry_backoff_ms": RETRY_BACKOFF_MS,
        }
        if self._config.get("sasl_mechanism") == "OAUTHBEARER":
            timeout_s = settings.request_timeout_ms / 1_000
            self._config["sasl_oauth_token_provider"] = token_provider(
                security_config(settings), timeout_s
            )
        self._client: KafkaAdminClient | None = None

    def committed(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Position]:
        """Returns the offsets of a group, without those of unfinished transactions."""
        wanted = [
            TheirPartition(self._settings.broker_topic(at.topic), at.partition) for at in partitions
        ]
        found = self._ask(
            f"group {group}", lambda client: client.list_group_offsets({group: wanted})
        )[group]
        # confluent-kafka commits the zero byte that ends the text, and does not show it.
        return {
            TopicPartition(self._settings.logical_topic(at.topic), at.partition): Position(
                each.offset if each.offset >= 0 else None, (each.metadata or "").rstrip("\0")
            )
            for at, each in found.items()
        }

    def unfinished(self, transactional_ids: Iterable[str]) -> dict[str, Transaction]:
        """Returns the transactions of these ids that have not ended."""
        found: dict[str, Transaction] = {}
        for transactional_id in transactional_ids:
            description = self._describe(transactional_id)
            if description is not None and description.state in UNFINISHED_STATES:
                found[transactional_id] = Transaction(
                    started_at=description.transaction_start_time_ms,
                    is_ending=description.state is not TransactionState.ONGOING,
                )
        return found

    def _describe(self, transactional_id: str) -> Any:
        def ask(client: KafkaAdminClient) -> Any:
            try:
                return client.describe_transactions([transactional_id])[transactional_id]
            except TransactionalIdNotFoundError:
                return None

        return self._ask(f"transactional id {transactional_id}", ask)

    def close(self) -> None:
        """Disconnects."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _ask(self, about: str, question: Callable[..., T]) -> T:
        try:
            if self._client is None:
                self._client = KafkaAdminClient(**self._config)
            return question(self._client)
        except AuthorizationError as error:
            raise DeploymentError(
                f"Kafka refuses a right (Describe on {about}): {error!r}; allow what "
                "`carpool acls` prints for this service"
            ) from error
        except UnsupportedVersionError as error:
            raise DeploymentError(
                "these brokers cannot describe transactions: exactly-once delivery needs Kafka 3.0 "
                'or newer; set [kafka] delivery = "at_least_once" otherwise'
            ) from error
        except (KafkaError, OSError) as error:
            self.close()  # the next call connects again
            raise RetryableError(f"the coordinator of {about} did not answer: {error!r}") from error


SAME: Mapping[str, str] = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "ssl.crl.location": "ssl_crlfile",
}
"""Settings whose values mean the same to both."""
OF_TOKENS = (
    "enable.sasl.oauthbearer.unsecure.jwt",
    "https.ca.location",
    "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.extensions",
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.token.endpoint.url",
)
"""Settings that `oauth_tokens` reads."""
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
SECURITY_PREFIXES = ("ssl.", "sasl.", "enable.ssl.", "enable.sasl.", "https.")
HOSTNAME_CHECK = "ssl.endpoint.identification.algorithm"
VERIFICATION = "enable.ssl.certificate.verification"
ADVICE = (
    'exactly-once delivery asks the coordinators by a second client; set [kafka] delivery = "'
    'at_least_once" to go without it'
)


def coordinator_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of kafka-python's admin client. Contains secrets: never log it.

    `config` has librdkafka's settings, by full name. Raises `ConfigError` for a security setting
    that kafka-python lacks.
    """
    protocol = str(config.get("security.protocol", "PLAINTEXT")).upper()
    found: dict[str, Any] = {
        "bootstrap_servers": [each.strip() for each in config["bootstrap.servers"].split(",")]
    }
    for name, value in config.items():
        if name in SAME:
            found[SAME[name]] = value
        elif name == HOSTNAME_CHECK and str(value).lower() in ("none", "https"):
            found["ssl_check_hostname"] = str(value).lower() == "https"
        elif name == VERIFICATION and str(value).lower() == "true":
            continue
        elif name.startswith(SECURITY_PREFIXES) and name not in OF_TOKENS:
            raise ConfigError(f"kafka-python has no setting like librdkafka.{name}: {ADVICE}")
    if protocol.startswith("SASL") and found.get("sasl_mechanism") not in MECHANISMS:
        raise ConfigError(
            f"kafka-python has no SASL mechanism {found.get('sasl_mechanism')}: {ADVICE}"
        )
    return found | {"security_protocol": protocol}

"""The section `kafka`: brokers, topics, consumer groups, delivery, attempts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from carpool.kafka.passed_through import names_token_source, refusals
from carpool.settings import Secret, Settings

GROUPS_WITHOUT_PREFIX = "carpool"
"""Consumer groups begin with it where there is no prefix."""


class KafkaSettings(Settings, frozen=True, kw_only=True):
    """The section `kafka`: brokers, topics, consumer groups, delivery and attempts."""

    bootstrap: Annotated[
        str, Meta(description="Brokers to connect to first: host:port, comma-separated.")
    ] = "127.0.0.1:9092"
    prefix: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9._-]{0,64}$",
            description="Name of a corpus among several on one cluster: topics are named "
            "PREFIX.rag.*, consumer groups and transactional ids begin with PREFIX-. Empty: topics "
            "rag.*, groups carpool-*.",
        ),
    ] = ""
    request_timeout_ms: Annotated[
        int,
        Meta(
            ge=1_000,
            le=300_000,
            description="How long administrative calls and look-ups may take before they fail.",
        ),
    ] = 10_000
    security_protocol: Annotated[
        Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"],
        Meta(description="Security protocol of the connections to the brokers."),
    ] = "PLAINTEXT"
    sasl_mechanism: Annotated[
        str, Meta(description="SASL mechanism: PLAIN, SCRAM-SHA-512, OAUTHBEARER; empty: none.")
    ] = ""
    sasl_username: Annotated[str, Meta(description="SASL user name.")] = ""
    sasl_password: Annotated[
        Secret, Meta(description="SASL password; from the environment only.")
    ] = Secret()
    ssl_ca_location: Annotated[
        str, Meta(description="File of the certificate authority; empty: the system's.")
    ] = ""
    ssl_key_password: Annotated[
        Secret,
        Meta(
            description="Password of the file in librdkafka.ssl.key.location or "
            "librdkafka.ssl.keystore.location; from the environment only."
        ),
    ] = Secret()
    oauthbearer_client_secret: Annotated[
        Secret,
        Meta(
            description="Secret of the OAuth client librdkafka.sasl.oauthbearer.client.id; from "
            "the environment only."
        ),
    ] = Secret()
    librdkafka: Annotated[
        dict[str, Any],
        Meta(
            description="More settings of librdkafka, for every client, such as "
            "ssl.certificate.location; in the environment a JSON object. Those that a promise of "
            "Carpool depends on are refused."
        ),
    ] = msgspec.field(default_factory=dict)

    delivery: Annotated[
        Literal["auto", "exactly_once", "at_least_once"],
        Meta(
            description="How results commit: exactly_once in transactions, at_least_once with "
            "stable record ids (after a crash, "
            "work in flight may be repeated); auto: exactly_once where the brokers support it."
        ),
    ] = "auto"
    instance_id: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9._-]{0,64}$",
            description="Name of this member: the same after a restart, and unique among the "
            "members of its service. A restart ends the transaction that it left open. "
            "Empty: the host's name.",
        ),
    ] = ""
    partitions: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000,
            description="Partitions of new topics that have keys: the most groupers, and the most "
            "generators, that have work.",
        ),
    ] = 4
    lanes: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000,
            description="Partitions of the topics of groups: the most searchers that have work, "
            "each with a budget of its own. Must be the same for all services. Windows go to the "
            "lanes in turn. Several searchers that read clusters or paged codes read more bytes "
            "than one searcher does.",
        ),
    ] = 1
    replication_factor: Annotated[
        int,
        Meta(
            ge=0,
            le=9,
            description="Copies of each topic; 0: three, or as many as there are brokers.",
        ),
    ] = 0
    attempts_max: Annotated[
        int,
        Meta(
            ge=1,
            le=100,
            description="Attempts for a query, if a retry may succeed. Low: short outages cost "
            "answers; high: queries that always fail cost work.",
        ),
    ] = 3

    def check(self) -> list[str]:
        """Returns what is wrong between these values."""
        problems = []
        has_user = bool(self.sasl_username) or self.sasl_mechanism == "OAUTHBEARER"
        if self.security_protocol.startswith("SASL") and not (self.sasl_mechanism and has_user):
            problems.append(
                "security_protocol asks for SASL, but sasl_mechanism or sasl_username is empty"
            )
        if self.sasl_mechanism == "OAUTHBEARER" and not names_token_source(self.librdkafka):
            problems.append(
                "sasl_mechanism is OAUTHBEARER without a source of tokens: set "
                "librdkafka.sasl.oauthbearer.method to oidc, and "
                "librdkafka.sasl.oauthbearer.token.endpoint.url"
            )
        problems += refusals(self.librdkafka)
        if not self.bootstrap.strip():
            problems.append("bootstrap is empty: name at least one broker as host:port")
        if self.prefix == GROUPS_WITHOUT_PREFIX:
            problems.append(
                f"prefix is {self.prefix}, which begins the groups of a deployment without a "
                "prefix: choose another"
            )
        return problems

    def broker_topic(self, topic: str) -> str:
        """Returns the name of a topic at the brokers: its logical name after the prefix."""
        return f"{self.prefix}.{topic}" if self.prefix else topic

    def logical_topic(self, broker_topic: str) -> str:
        """Returns the name of a topic in records and inside Carpool: without the prefix."""
        return broker_topic.removeprefix(self.broker_topic(""))

    def group_of(self, service: str) -> str:
        """Returns the consumer group of a service; transactional ids begin with it."""
        return f"{self.prefix or GROUPS_WITHOUT_PREFIX}-{service}"

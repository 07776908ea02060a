"""Asks the brokers for the facts that `checks` judges, at start and while a service runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import structlog

from carpool.errors import CarpoolError, ConfigError, RetryableError
from carpool.kafka.acls import SERVICES, acls_of
from carpool.kafka.admin import topic_facts
from carpool.kafka.checks import (
    BrokerFacts,
    Deployment,
    Wish,
    have_transactions,
    judge,
    named_at_brokers,
)
from carpool.kafka.cluster import cluster_metadata, quiet_admin
from carpool.kafka.librdkafka.ask_brokers import broker_config, standings, topic_rights
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from schemas.topics import ANSWERS, QUERY_TOPICS, Topic

log = structlog.get_logger()

WATCH_S = 60.0
"""How often a running service checks its topics."""
TO_DATA = frozenset({"READ", "WRITE", "DELETE"})
"""The operations on the records of a topic."""


def check_deployment(
    settings: KafkaSettings,
    wish: Wish,
    topics: Sequence[Topic],
    *,
    group: str,
    inputs: Iterable[str],
    service: str = "",
) -> Deployment:
    """Returns the judged deployment of a service of this `group` that reads `inputs`. Blocks.

    `service`: whose rights the credentials need; empty: only those to look. Raises
    `RetryableError` when no broker answers.
    """
    facts = broker_facts(settings, topics, group, inputs, service)
    found = judge(settings, wish, topics, facts, service)
    if facts.unknown is not None and not found.problems:  # a problem may be why
        raise facts.unknown
    return found


def broker_facts(
    settings: KafkaSettings,
    topics: Sequence[Topic],
    group: str,
    inputs: Iterable[str],
    service: str = "",
) -> BrokerFacts:
    """Returns what the brokers say of `topics`, and where `group` is in `inputs`. Blocks.

    Raises as `check_deployment` does.
    """
    admin, timeout_s = quiet_admin(settings), settings.request_timeout_ms / 1_000
    metadata = cluster_metadata(admin, settings, timeout_s)
    config = broker_config(admin, metadata.brokers, timeout_s)
    wanted = named_at_brokers(settings, topics)
    found = topic_facts(admin, metadata, wanted, timeout_s)
    asked = {settings.broker_topic(name) for name in inputs}
    if any(settings.broker_topic(name) in asked for name in QUERY_TOPICS):
        asked.add(settings.broker_topic(ANSWERS.name))
    partitions = [
        TopicPartition(name, number)
        for name in sorted(found.keys() & asked)
        if have_transactions(config)  # the embedded broker, without, returns ends that are too low
        for number in metadata.topics[name].partitions
    ]
    # Brokers without access control hide nothing, and some create a topic that a request names.
    may_hide = config is None or "authorizer.class.name" in config
    allowed = topic_rights(admin, [topic.name for topic in wanted if may_hide], timeout_s)
    group_standings, unknown = {}, None
    try:
        if partitions:
            group_standings = standings(admin, settings, group, partitions)
    except RetryableError as error:
        unknown = error
    return BrokerFacts(
        brokers=len(metadata.brokers),
        config=config,
        topics=found,
        standings=group_standings,
        unknown=unknown,
        hidden_topics=frozenset(name for name, granted in allowed.items() if not granted),
        lacking=tuple(
            (acl.name, acl.operation)
            for role in SERVICES
            for acl in acls_of(role, settings)
            if role == service
            and acl.operation in TO_DATA
            and acl.operation not in (allowed.get(acl.name) or TO_DATA)  # a hidden one is said
        ),
    )


@dataclass
class DeploymentWatch:
    """Warns when topics change so that a service would not start or might lose work.

    Each warning is logged once, until what it says has ended. `start`: the deployment at start,
    whose warnings are logged already.
    """

    settings: KafkaSettings
    topics: Sequence[Topic]
    group: str
    service: str
    start: Deployment

    def __post_init__(self) -> None:
        """Takes the warnings that are logged already."""
        self._known = set(self.start.warnings)

    def step(self) -> None:
        """Checks once. Blocks. Brokers that do not answer are left to others to report."""
        try:
            now = check_deployment(
                self.settings,
                self.start.delivery,
                self.topics,
                group=self.group,
                inputs=(),
                service=self.service,
            )
        except CarpoolError:
            return
        found = {*now.problems, *now.warnings}
        for text in sorted(found - self._known):
            log.warning(text)
        self._known = found


def require_fit(deployment: Deployment) -> None:
    """Raises `ConfigError` with all problems, where there are any."""
    if deployment.problems:
        raise ConfigError(
            "this deployment would lose work or stand still:\n  " + "\n  ".join(deployment.problems)
        )

"""Judges whether the topics of the corpus keep what readers of a compacted log rely on. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from carpool.kafka.settings import KafkaSettings
from schemas.topics import DOCUMENTS, VECTORS, Topic


def corpus_warnings(topic: Topic, config: Mapping[str, str]) -> Iterator[str]:
    """Yields what hides from a reader that a log lacks records (`carpool.corpus.fold`)."""
    lag_ms = topic.compaction_lag_ms or 0
    if (found := number_of(config, "min.compaction.lag.ms")) is not None and found < lag_ms:
        yield _overlooked(topic, config, "min.compaction.lag.ms", lag_ms)
    if config.get("message.timestamp.type") == "CreateTime":
        yield _overlooked(topic, config, "message.timestamp.type", "LogAppendTime")


def _overlooked(topic: Topic, config: Mapping[str, str], name: str, value: int | str) -> str:
    return (
        f"topic {topic.name} has {name}={config[name]}: a search may show a document that was "
        f"replaced or deleted. {mended_by(topic.name, name, value)}"
    )


def uneven_corpus(
    settings: KafkaSettings, topics: Collection[Topic], counts: Mapping[str, int]
) -> Iterator[str]:
    """Yields that documents and vectors differ in partitions, where `topics` has both.

    `counts`: the partitions by the brokers' names of topics.
    """
    names = [settings.broker_topic(each.name) for each in (DOCUMENTS, VECTORS) if each in topics]
    found = [counts[name] for name in names if name in counts]
    if len(found) == 2 and found[0] != found[1]:
        yield (
            f"topic {names[0]} has {found[0]} partitions and {names[1]} has {found[1]}: both have "
            "one number for life, since a document stays in its partition. Delete both, run "
            "`carpool topics create`, and publish the documents again"
        )


def number_of(config: Mapping[str, str], name: str) -> int | None:
    """Returns a setting that is a number; None where it is not there."""
    try:
        return int(config[name])
    except (KeyError, ValueError):
        return None


def mended_by(topic: str, name: str, value: int | str) -> str:
    """Returns the command that changes a setting of a topic, in a sentence."""
    return (
        f"`kafka-configs --alter --entity-type topics --entity-name {topic} --add-config "
        f"{name}={value}` mends it"
    )

"""The prefix: put on names that go to the brokers, taken off names that come from them."""

from __future__ import annotations

import os
import string
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool import Client
from carpool.clock import SystemClock
from carpool.dead_letters.box import DeadLetterBox
from carpool.errors import ConfigError
from carpool.kafka.acls import ROLES, acls_of
from carpool.kafka.admin import create_topics, missing_topics
from carpool.kafka.checks import BrokerFacts, TopicFacts, judge
from carpool.kafka.raw_records import place_of, raw_partition
from carpool.kafka.records import TopicPartition
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import TopicReader
from carpool.settings import load_settings
from cli.options import logical_topic
from cli.runfile import Run, RunFile
from cli.settings import ClientSide, Given, load_client_side
from schemas.topics import ANSWERS, QUERIES_DEAD, TOPICS

OURS = [topic.name for topic in TOPICS]
WORDS = st.text(string.ascii_letters + string.digits + "._-", max_size=64)


class OnlyKafka(msgspec.Struct, frozen=True, kw_only=True):
    kafka: KafkaSettings


def loaded(**environ: str) -> KafkaSettings:
    variables = {f"CARPOOL_KAFKA_{name.upper()}": value for name, value in environ.items()}
    return load_settings(OnlyKafka, file=None, environ=variables).kafka


@given(prefix=WORDS | st.just("rag"), topic=WORDS | st.sampled_from(OURS), partition=st.integers(0))
def test_putting_a_prefix_on_and_taking_it_off_are_inverse(
    prefix: str, topic: str, partition: int
) -> None:
    settings = KafkaSettings(prefix=prefix)
    there = settings.broker_topic(topic)
    assert there.startswith(settings.broker_topic(""))
    assert settings.logical_topic(there) == topic
    at = TopicPartition(topic, partition % 1_000)
    assert place_of(settings, raw_partition(settings, at)) == at


@given(prefix=WORDS | st.just("rag"), topic=st.sampled_from(OURS))
def test_an_operator_may_name_a_topic_with_or_without_the_prefix(prefix: str, topic: str) -> None:
    settings = KafkaSettings(prefix=prefix)
    assert logical_topic(settings, topic) == topic
    assert logical_topic(settings, settings.broker_topic(topic)) == topic


@pytest.mark.parametrize("prefix", ["a b", "wiki/en", "ü", "x" * 65, "carpool"])
def test_a_prefix_that_kafka_or_another_deployment_cannot_share_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigError, match="prefix"):
        loaded(prefix=prefix)


def test_every_right_is_about_a_name_with_the_prefix() -> None:
    for role in ROLES:
        for acl in acls_of(role, KafkaSettings(prefix="wiki")):
            begin = "wiki." if acl.resource == "TOPIC" else "wiki-"
            assert acl.resource == "CLUSTER" or acl.name.startswith(begin), acl


def test_checks_name_topics_as_the_brokers_do_and_judge_those_of_the_prefix_only() -> None:
    whole, few = (
        TopicFacts(partitions=partitions, replicas=1, config=None) for partitions in (4, 1)
    )
    wiki = {f"wiki.{name}": whole for name in OURS if name != ANSWERS.name}
    wiki[f"wiki.{QUERIES_DEAD.name}"] = few
    facts = BrokerFacts(brokers=1, topics=dict.fromkeys(OURS, whole) | wiki)
    found = judge(KafkaSettings(prefix="wiki"), "auto", TOPICS, facts)
    assert any("topic wiki.rag.answers.v1 does not exist" in each for each in found.problems)
    assert any("topic wiki.rag.queries.v1.dlq has 1 partitions" in each for each in found.warnings)
    others = judge(KafkaSettings(), "auto", TOPICS, facts)
    assert not any("wiki" in each for each in (*others.problems, *others.warnings))


def test_a_client_takes_a_prefix_with_brokers_and_not_with_settings() -> None:
    assert Client("a:1", prefix="wiki")._kafka == KafkaSettings(bootstrap="a:1", prefix="wiki")
    with pytest.raises(ConfigError, match="prefix"):
        Client(prefix="wiki", kafka=KafkaSettings())


def test_a_client_reads_the_settings_of_the_services(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "carpool.toml"
    file.write_text(
        '[kafka]\nbootstrap = "a:1"\nsecurity_protocol = "SASL_SSL"\nsasl_mechanism = "PLAIN"\n'
        'sasl_username = "app"\n[client]\nanswer_timeout_ms = 7\n[searcher]\nbudget_bytes = 1\n'
    )
    monkeypatch.setenv("CARPOOL_KAFKA_SASL_PASSWORD", "secret")
    monkeypatch.setenv("CARPOOL_KAFKA_PREFIX", "wiki")
    named = Client.from_settings(file)
    monkeypatch.setenv("CARPOOL_CONFIG", str(file))
    for client in (named, Client.from_settings()):
        assert (client._settings.answer_timeout_ms, client._kafka.bootstrap) == (7, "a:1")
        assert (client._kafka.sasl_password.value, client._kafka.prefix) == ("secret", "wiki")
    file.write_text('[kafka]\nsasl_password = "in a file"\n')
    with pytest.raises(ConfigError, match="CARPOOL_KAFKA_SASL_PASSWORD only"):
        Client.from_settings()
    with pytest.raises(ConfigError, match="no settings file"):
        Client.from_settings("nowhere.toml")


def test_commands_take_the_prefix_of_a_running_stack_unless_they_are_given_one(
    tmp_path: Path,
) -> None:
    RunFile(tmp_path).write(Run(pid=os.getpid(), bootstrap="a:1", prefix="wiki", http={}))

    def kafka(**own: str) -> KafkaSettings:
        flags = {"up": {"state_dir": str(tmp_path)}, "kafka": own}
        return load_client_side(Given(file=None, environ={}, flags=flags), ClientSide).kafka

    assert kafka() == KafkaSettings(bootstrap="a:1", prefix="wiki")
    assert kafka(prefix="news") == KafkaSettings(bootstrap="a:1", prefix="news")
    assert kafka(bootstrap="b:1") == KafkaSettings(bootstrap="b:1")


def test_topics_of_another_prefix_are_neither_made_nor_seen(bootstrap: str) -> None:
    first = KafkaSettings(bootstrap=bootstrap, prefix="first", partitions=1)
    second = msgspec.structs.replace(first, prefix="second")
    made = create_topics(first)
    assert made == sorted(f"first.{name}" for name in OURS)
    assert create_topics(first) == []
    assert sorted(missing_topics(second)) == sorted(f"second.{name}" for name in OURS)
    create_topics(second)
    with TopicReader(first, SystemClock(), name="test") as reader:
        assert sorted(reader.topics()) == sorted(OURS)
    create_topics(KafkaSettings(bootstrap=bootstrap))
    letters = [name for name in OURS if name.endswith(".dlq")]
    for settings in (first, KafkaSettings(bootstrap=bootstrap)):
        assert DeadLetterBox(settings, SystemClock()).topics() == tuple(sorted(letters))

"""Settings of librdkafka that pass through, those that are refused, and their translation."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from carpool.errors import ConfigError, RetryableError
from carpool.kafka.acls import ROLES, SERVICES, acls_of
from carpool.kafka.client_config import client_config, consumer_config, producer_config
from carpool.kafka.coordinator import coordinator_config
from carpool.kafka.librdkafka.member_state import GroupProtocol, member_config
from carpool.kafka.librdkafka.purge import PURGED
from carpool.kafka.oauth_tokens import token_provider
from carpool.kafka.passed_through import DENIED, SECRETS
from carpool.kafka.settings import KafkaSettings
from schemas.topics import RETRY_TOPICS, TOPICS


def test_a_setting_passes_through_to_every_client_and_wins_over_a_default() -> None:
    settings = KafkaSettings(librdkafka={"linger.ms": 50, "fetch.queue.backoff.ms": 9})
    assert not settings.check()
    assert producer_config(settings)["linger.ms"] == 50
    assert consumer_config(settings, "g")["fetch.queue.backoff.ms"] == 9


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_look_for_new_partitions_every_30_s(protocol: GroupProtocol) -> None:
    config = member_config(KafkaSettings(), "g", protocol)
    assert config["topic.metadata.refresh.interval.ms"] <= 30_000


@pytest.mark.parametrize("name", [*DENIED, *SECRETS, "error_cb", "ssl.key.pem"])
def test_what_a_promise_depends_on_is_refused_with_the_reason(name: str) -> None:
    settings = KafkaSettings(librdkafka={name: "s3cret"})
    (problem,) = settings.check()
    assert name in problem
    assert "s3cret" not in problem
    with pytest.raises(ConfigError, match="do not fit"):
        client_config(settings)


def test_every_setting_that_carpool_computes_for_a_member_is_refused_or_may_be_replaced() -> None:
    tuning = {
        "fetch.message.max.bytes", "fetch.queue.backoff.ms", "fetch.wait.max.ms", "group.protocol",
        "linger.ms", "max.poll.interval.ms", "queued.max.messages.kbytes", "queued.min.messages",
        "reconnect.backoff.max.ms", "session.timeout.ms", "socket.keepalive.enable",
        "topic.metadata.refresh.interval.ms",
    }  # fmt: skip
    ours = KafkaSettings()
    names = member_config(ours, "g", "consumer").keys() | producer_config(ours).keys()
    assert names | member_config(ours, "g", "classic").keys() <= DENIED.keys() | tuning


def test_an_unknown_name_is_refused_with_the_message_of_librdkafka() -> None:
    with pytest.raises(ConfigError, match=r'No such configuration property: "no\.such"') as raised:
        client_config(KafkaSettings(librdkafka={"no.such": 1}))
    assert "\n" not in str(raised.value)


def test_a_password_that_is_missing_is_named_by_its_variable() -> None:
    settings = KafkaSettings(
        security_protocol="SASL_SSL", sasl_mechanism="SCRAM-SHA-512", sasl_username="u"
    )
    with pytest.raises(ConfigError, match=r"must be set.*CARPOOL_KAFKA_SASL_PASSWORD"):
        client_config(settings)


def test_a_file_that_is_not_there_is_refused_at_start() -> None:
    with pytest.raises(ConfigError, match=r"ssl\.ca\.location failed"):
        client_config(KafkaSettings(security_protocol="SSL", ssl_ca_location="/nowhere.pem"))


@pytest.mark.parametrize(
    "config",
    [
        {"ssl.keystore.location": "a.p12"},
        {"enable.ssl.certificate.verification": "false"},
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"},
    ],
)
def test_what_the_second_client_lacks_is_said_with_the_way_out(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="at_least_once"):
        coordinator_config({"bootstrap.servers": "a:1", "security.protocol": "SSL"} | config)


def test_every_topic_is_in_the_rights_of_each_side() -> None:
    for operation in ("READ", "WRITE"):
        named = {
            acl.name
            for role in ROLES
            for acl in acls_of(role, KafkaSettings())
            if acl.operation == operation
        }
        assert {topic.name for topic in TOPICS} <= named, operation


class RefusesAll(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.send_error(401)

    def log_message(self, *_: object) -> None:
        pass


def test_a_refused_token_names_the_secret_without_showing_it() -> None:
    with HTTPServer(("127.0.0.1", 0), RefusesAll) as endpoint:
        Thread(target=endpoint.handle_request, daemon=True).start()
        config = {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": f"http://127.0.0.1:{endpoint.server_port}/",
            "sasl.oauthbearer.client.secret": "wr0ng",
        }
        with pytest.raises(RetryableError, match="OAUTHBEARER_CLIENT_SECRET") as raised:
            token_provider(config, 5).token()
    assert "wr0ng" not in str(raised.value)


def test_applications_may_not_write_retries() -> None:
    for acl in acls_of("application", KafkaSettings()):
        assert not (acl.name in RETRY_TOPICS and acl.operation == "WRITE")


def test_each_topic_that_is_purged_may_be_purged_by_the_service_that_reads_it() -> None:
    deleted = {
        acl.name
        for role in SERVICES
        for acl in acls_of(role, KafkaSettings())
        if acl.operation == "DELETE"
    }
    assert deleted == PURGED

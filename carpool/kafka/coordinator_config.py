"""Translates the security settings of librdkafka for kafka-python (ADR 0012). Pure.

Settings that do not decide whether a connection is made, such as buffers, are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from carpool.errors import ConfigError

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

    `config`: of librdkafka, by full name. Raises `ConfigError` for a security setting that
    kafka-python lacks.
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

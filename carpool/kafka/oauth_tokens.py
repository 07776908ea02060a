"""Gets OAUTHBEARER tokens for kafka-python, by the settings `sasl.oauthbearer.*` of librdkafka."""

from __future__ import annotations

import base64
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

from kafka.net.sasl.oauth import AbstractTokenProvider

from carpool.errors import ConfigError, RetryableError

REUSED_SHARE = 0.8
"""A token is used for this share of its life, as librdkafka does."""
UNSECURED_S = 3_600
"""The life of an unsecured token, which is librdkafka's default."""
Token = tuple[str, float]
"""A token and the time (epoch, seconds) when it expires."""


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc] # kafka-python is untyped
    """Keeps a token until most of its life is over. `fetch` blocks."""

    def __init__(self, fetch: Callable[[], Token], extensions: Mapping[str, str]) -> None:
        self._fetch = fetch
        self._extensions = dict(extensions)
        self._token = ""
        self._until_s = 0.0

    def token(self) -> str:
        """Returns a token that is valid. Blocks. Raises `RetryableError` when there is none."""
        now_s = time.time()
        if now_s >= self._until_s:
            self._token, expires_s = self._fetch()
            self._until_s = now_s + REUSED_SHARE * (expires_s - now_s)
        return self._token

    def extensions(self) -> dict[str, str]:
        """Returns the SASL extensions of the settings."""
        return self._extensions


def token_provider(config: Mapping[str, Any], timeout_s: float) -> TokenProvider:
    """Returns the provider for the settings of librdkafka. Contacts nobody.

    A request for a token takes at most `timeout_s`. `KafkaSettings.check` has made sure that there
    is a source.
    """
    extensions = _pairs(str(config.get("sasl.oauthbearer.extensions", "")), ",")
    if str(config.get("sasl.oauthbearer.method", "")).lower() == "oidc":
        return TokenProvider(lambda: _from_endpoint(config, timeout_s), extensions)
    claims = _pairs(str(config.get("sasl.oauthbearer.config", "")), None)
    return TokenProvider(lambda: unsecured_token(claims), extensions)


def unsecured_token(claims: Mapping[str, str]) -> Token:
    """Returns a token without signature, for test brokers; `claims`: librdkafka's words."""
    now_s = time.time()
    life_s = float(claims.get("lifeSeconds", UNSECURED_S))
    body = {
        claims.get("principalClaimName", "sub"): claims.get("principal", ""),
        "iat": now_s,
        "exp": now_s + life_s,
    }
    if "scope" in claims:
        body[claims.get("scopeClaimName", "scope")] = claims["scope"].split(",")
    return f"{_part({'alg': 'none'})}.{_part(body)}.", now_s + life_s


def _from_endpoint(config: Mapping[str, Any], timeout_s: float) -> Token:
    """Asks the token endpoint, with the client's credentials (RFC 6749, section 4.4)."""
    url = str(config.get("sasl.oauthbearer.token.endpoint.url", ""))
    client = config.get("sasl.oauthbearer.client.id") or config.get(
        "sasl.oauthbearer.client.credentials.client.id", ""
    )
    secret = config.get("sasl.oauthbearer.client.secret", "")
    form = {"grant_type": "client_credentials"}
    if scope := config.get("sasl.oauthbearer.scope"):
        form["scope"] = scope
    if not url.startswith(("https://", "http://")):
        raise ConfigError("sasl.oauthbearer.token.endpoint.url is no address of http or https")
    request = urllib.request.Request(  # noqa: S310 - http and https only, see above
        url,
        data=urllib.parse.urlencode(form).encode(),
        headers={
            "Authorization": "Basic " + base64.b64encode(f"{client}:{secret}".encode()).decode(),
            "Accept": "application/json",
        },
    )
    context = ssl.create_default_context(cafile=config.get("https.ca.location") or None)
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(request, timeout=timeout_s) as reply:
            token = str(json.load(reply)["access_token"])
        return token, float(json.loads(_decoded(token.split(".")[1]))["exp"])
    except urllib.error.HTTPError as error:
        error.close()
        raise _no_token(url, f"HTTP {error.code}") from error
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise _no_token(url, repr(error)) from error


def _no_token(url: str, why: str) -> RetryableError:
    return RetryableError(
        f"the token endpoint {url} gives no token ({why}): check the address, the client id and "
        "CARPOOL_KAFKA_OAUTHBEARER_CLIENT_SECRET"
    )


def _pairs(text: str, separator: str | None) -> dict[str, str]:
    pairs = (each.partition("=") for each in text.split(separator))
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}


def _part(content: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode()


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))

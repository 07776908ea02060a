"""Keys: who may come in. A file has the digest of each, never the key."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated, Any

import msgspec

from carpool.errors import ConfigError
from gateway.settings import GatewaySettings

PREFIX = "cpk-"
KEY_FILE = Path(".carpool/gateway.key")
"""Of the key of this machine."""
LOCAL_OWNER, LINK_OWNER = "local", "link"


class Key(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of the file. `owner`: whose questions they are; no answer of another one is reused.

    `per_minute`: requests that it may send. `cost_a_day`: what the tokens of its answers may cost,
    in the currency of `client.price_in`, until midnight UTC. 0: no limit. Each gateway counts for
    itself, from its start on.
    """

    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    owner: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    per_minute: Annotated[int, msgspec.Meta(ge=0)] = 0
    cost_a_day: Annotated[float, msgspec.Meta(ge=0)] = 0.0


def new_key() -> str:
    """Returns a key of 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def key_of(text: str, owner: str, **limits: Any) -> Key:
    """Returns the line of a key."""
    return Key(sha256=digest_of(text), owner=owner, **limits)


def digest_of(text: str) -> str:
    """Returns the SHA-256 of a key, hexadecimal."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


class Keys:
    """The keys of a gateway."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys: Sequence[Key] = tuple(keys)
        self._secret = "".join(key.sha256 for key in self._keys).encode()

    @property
    def have_costs(self) -> bool:
        """Whether the cost of a key is limited."""
        return any(key.cost_a_day for key in self._keys)

    def first_of(self, owner: str) -> Key | None:
        """Returns the first key of an owner: that which batches are charged to."""
        return next((key for key in self._keys if key.owner == owner), None)

    def signature(self, text: str) -> str:
        """Returns what proves that a gateway with these keys wrote this text."""
        return hmac.new(self._secret, text.encode("utf-8", "replace"), hashlib.sha256).hexdigest()[
            :32
        ]

    def find(self, authorization: str) -> Key | None:
        """Returns the key of a header `Authorization: Bearer KEY`. Its time tells nothing."""
        kind, _, text = authorization.partition(" ")
        given, found = digest_of(text.strip()), None
        for key in self._keys:
            if hmac.compare_digest(key.sha256, given) and kind.lower() == "bearer":
                found = key
        return found


def read_keys(path: Path) -> Keys:
    """Reads the file of keys. Raises `ConfigError` that names file and line."""
    keys = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the keys in {path} cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            keys.append(msgspec.json.decode(line, type=Key))
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{path}, line {number}: no key: {error}") from None
    if not keys:
        raise ConfigError(f"{path} has no keys: `carpool gateway-key` prints one")
    return Keys(keys)


def keys_of(settings: GatewaySettings, *, has_prices: bool = True) -> Keys:
    """Returns the keys of the settings; without a file, that of this machine.

    Raises `ConfigError`, also for a limit of cost where no prices are set.
    """
    if settings.keys_file:
        keys = read_keys(Path(settings.keys_file))
        if not has_prices and keys.have_costs:
            raise ConfigError(
                f"{settings.keys_file} limits a cost, and client.price_in and client.price_out are "
                "0: set what a million tokens cost"
            )
        return keys
    return Keys([key_of(local_key(KEY_FILE), LOCAL_OWNER)])


def environment_line(settings: GatewaySettings, port: int) -> str:
    """Returns the variables that the SDK reads; the key only if it is that of this machine."""
    key = "" if settings.keys_file else f" OPENAI_API_KEY={local_key(KEY_FILE)}"
    return f"OPENAI_BASE_URL={settings.base_url(port)}/v1{key}"


def local_key(path: Path) -> str:
    """Returns the key of this machine, made at the first start; only its user can read the file.

    Raises `ConfigError`.
    """
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile("w", dir=path.parent, encoding="ascii") as file:  # mode 600
                file.write(new_key() + "\n")
                file.flush()
                with suppress(FileExistsError):  # another process was first
                    os.link(file.name, path)
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the key in {path} cannot be read or made: {error}") from error
    if not text.startswith(PREFIX):
        raise ConfigError(f"{path} has no key: remove it, and another one is made")
    return text

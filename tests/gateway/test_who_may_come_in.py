"""Keys, their limits, and where a gateway may listen."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from carpool.errors import ConfigError
from gateway.keys import Keys, digest_of, key_of, keys_of, local_key, new_key, read_keys
from gateway.limits import DAY_S, Limits
from gateway.settings import GatewaySettings
from producers.settings import ClientSettings
from schemas.answer import Usage
from tests.records import an_answer

NOON_S = 20_000 * DAY_S + DAY_S / 2


def test_a_key_is_found_by_its_header_alone(tmp_path: Path) -> None:
    one, other = new_key(), new_key()
    lines = [key_of(one, "a"), key_of(other, "b", per_minute=3)]
    (file := tmp_path / "keys").write_bytes(b"\n\n".join(map(msgspec.json.encode, lines)))
    keys = read_keys(file)
    assert one not in file.read_text() and digest_of(one) in file.read_text()
    assert [keys.find(f"{kind} {other}") == lines[1] for kind in ("Bearer", "bearer", "Basic")] == [
        True,
        True,
        False,
    ]
    assert keys.find("") is keys.find("Bearer") is keys.find(f"Bearer {one}x") is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "has no keys"),
        ('{"owner": "a"}', "line 1: no key"),
        (f'{{"owner": "a", "sha256": "{"0" * 64}", "rate": 3}}', "rate"),
    ],
)
def test_a_file_of_no_keys_is_refused_with_its_line(tmp_path: Path, text: str, why: str) -> None:
    (file := tmp_path / "keys").write_text(text)
    with pytest.raises(ConfigError, match=why):
        read_keys(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(tmp_path / "none")


def test_the_key_of_a_machine_stays_and_is_its_users_alone(tmp_path: Path) -> None:
    made = local_key(file := tmp_path / "own" / "key")
    assert local_key(file) == made and file.stat().st_mode & 0o777 == 0o600
    assert Keys([key_of(made, "local")]).find(f"Bearer {made}") is not None
    assert [*file.parent.iterdir()] == [file]
    file.write_text("")
    with pytest.raises(ConfigError, match="has no key"):
        local_key(file)


def test_a_limit_of_cost_needs_prices_and_names_are_those_that_clients_use(tmp_path: Path) -> None:
    (file := tmp_path / "keys").write_bytes(msgspec.json.encode(key_of("a", "a", cost_a_day=1.0)))
    settings = GatewaySettings(
        keys_file=str(file), host="10.0.0.1", public_url="https://RAG.example:8/x", hosts="b, c,"
    )
    assert settings.names() == {"10.0.0.1", "rag.example", "b", "c"}
    assert keys_of(settings).have_costs
    with pytest.raises(ConfigError, match="price_in"):
        keys_of(settings, has_prices=False)


def test_requests_come_at_the_rate_of_their_key() -> None:
    limits, key, free = Limits(ClientSettings()), key_of("a", "a", per_minute=60), key_of("b", "b")
    passed = [limits.refusal(key, NOON_S + second / 10) is None for second in range(1_200)]
    assert sum(passed) == 60 + 120 - 1 and all(passed[:60])
    over = limits.refusal(key, NOON_S + 120.0)
    assert over is None or over[1] == 1
    assert all(limits.refusal(free, NOON_S) is None for _ in range(1_000))


def test_a_key_that_used_its_cost_waits_for_the_next_day() -> None:
    limits = Limits(ClientSettings(price_in=1.0, price_out=10.0))
    key = key_of("a", "a", cost_a_day=0.003)
    answer = an_answer(usage=Usage(input_tokens=1_000, output_tokens=100))
    for left in (True, False):
        assert limits.refusal(key, NOON_S) is None
        limits.spent(key, answer, NOON_S)
        assert (limits.refusal(key, NOON_S) is None) is left
    limits.spent(key, an_answer(replayed=True, usage=answer.usage), NOON_S)
    over = limits.refusal(key, NOON_S)
    assert over is not None and over[1] == DAY_S / 2
    assert limits.refusal(key, NOON_S + DAY_S / 2) is None


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"host": "0.0.0.0"}, "keys_file"),
        ({"host": "0.0.0.0", "keys_file": "k"}, "tls_cert"),
        ({"host": "rag.example", "keys_file": "k"}, "tls_cert"),
        ({"tls_cert": "c"}, "tls_key"),
        ({"host": "::1"}, None),
        ({"host": "0.0.0.0", "keys_file": "k", "behind_proxy": True}, "public_url"),
        ({"host": "10.0.0.1", "keys_file": "k", "behind_proxy": True}, None),
        ({"host": "10.0.0.1", "keys_file": "k", "tls_cert": "c", "tls_key": "k"}, None),
    ],
)
def test_it_listens_elsewhere_with_keys_and_tls_only(given: dict[str, object], why: str) -> None:
    problems = msgspec.convert(given, GatewaySettings).check()
    assert any(why in each for each in problems) if why else problems == []

"""Settings of the generator and of its LLM: what is refused by name, and lists of servers."""

from __future__ import annotations

import msgspec
import pytest

from carpool.errors import ConfigError
from carpool.settings import load_settings
from generator.settings import GeneratorSettings, LlmSettings


class Sections(msgspec.Struct, frozen=True, kw_only=True):
    generator: GeneratorSettings
    llm: LlmSettings


def load(**environ: str) -> Sections:
    return load_settings(Sections, file=None, environ=environ)


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        (
            {"CARPOOL_GENERATOR_MAX_TOKENS": "2049"},
            "max_tokens 2049 is more than max_tokens_cap 2048",
        ),
        ({"CARPOOL_LLM_BASE_URL": "localhost:8000"}, "base_url 'localhost:8000' is no URL"),
        ({"CARPOOL_LLM_BASE_URL": "http://"}, "base_url 'http://' is no URL"),
        ({"CARPOOL_LLM_BASE_URL": "http://a/v1,b/v1"}, "base_url 'b/v1' is no URL"),
        ({"CARPOOL_LLM_BASE_URL": "http://a/v1, http://a/v1"}, "base_url names a server twice"),
        ({"CARPOOL_LLM_KV_EVENTS": "tcp://127.0.0.1"}, "kv_events 'tcp://127.0.0.1' is no"),
        ({"CARPOOL_LLM_KV_EVENTS": "tcp://h:65535"}, "kv_events 'tcp://h:65535' is no"),
        ({"CARPOOL_LLM_KV_EVENTS": "http://h:1"}, "kv_events 'http://h:1' is no"),
        ({"CARPOOL_LLM_KV_EVENTS": "ipc://a,ipc://b"}, "2 endpoints for 1 servers"),
    ],
)
def test_values_that_do_not_fit_are_refused_by_name(environ: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(**environ)
    assert said in str(error.value)


def test_kv_events_are_one_endpoint_a_server() -> None:
    assert load().llm.kv_endpoints() == ()
    given = LlmSettings(kv_events="ipc:///run/kv, tcp://[::1]:5557").kv_endpoints()
    assert given == ("ipc:///run/kv", "tcp://[::1]:5557")
    assert load(CARPOOL_LLM_KV_EVENTS="tcp://vllm:5557").llm.kv_endpoints() == ("tcp://vllm:5557",)


def test_several_servers_are_named_in_one_text() -> None:
    llm = load(CARPOOL_LLM_BASE_URL="http://a:8000/v1, http://b:8000/v1").llm
    assert llm.base_urls() == ("http://a:8000/v1", "http://b:8000/v1")
    assert load().llm.base_urls() == ("http://127.0.0.1:8000/v1",)

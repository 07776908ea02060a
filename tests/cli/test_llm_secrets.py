"""The key of the LLM server and a password in its URL reach the generator alone, and no output."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path

import pytest
import structlog
import yaml

from carpool.errors import ConfigError
from carpool.telemetry.logs import configure_logs
from carpool.terminal import without_password
from cli.all_settings import CarpoolSettings
from cli.main import main
from cli.options import given, passed_on
from cli.settings import load
from cli.stack import SERVICES, StackPlan, broker_spec, make_plan, service_specs, vllm_spec
from generator.llm.openai_api import OpenAiLlm
from generator.settings import LlmSettings
from tests.cli.support import carpool

ROOT = Path(__file__).parents[2]
URL = "http://name:sesame@10.0.0.1:8000/v1"
SHOWN = "http://name:********@10.0.0.1:8000/v1"
PLAN = StackPlan(
    bootstrap="127.0.0.1:9092",
    broker_port=9092,
    ports={"grouper": 1, "searcher": 2, "generator": 3},
    vllm_port=8000,
    llm_url=URL,
    llm_model="model",
)


def test_only_passwords_and_queries_become_stars() -> None:
    assert without_password(URL) == SHOWN
    assert without_password(f"at {URL}, then {URL}") == f"at {SHOWN}, then {SHOWN}"
    assert without_password("http://:a:b@c@host") == "http://:********@host"
    keys, starred = "http://h/v1?key=a&b=c", "http://h/v1?********"
    assert without_password(f"{keys},{keys}#x") == f"{starred},{starred}#x"
    assert without_password(f'"{keys}\\"}} {URL}?k=/@"') == f'"{starred}\\"}} {SHOWN}?********"'
    plain = ("http://host:8000/v1", "http://h/v1? No", "a?b=c", "http://name@host", "a: b@c")
    for text in (*plain, "http://h/a:b@c", "k:1"):
        assert without_password(text) == text


def test_up_gives_the_key_and_the_url_to_the_generator_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CARPOOL_LLM_API_KEY", "sesame-key")
    monkeypatch.setenv("CARPOOL_LLM_BASE_URL", URL)
    settings = load(CarpoolSettings, given(None, None))
    passed = passed_on(None, [f"llm.base_url={URL}", "llm.model=other", "grouper.nprobe=3"])
    services = service_specs(PLAN, settings, passed)
    specs = [*services, broker_spec(PLAN, settings.up), vllm_spec(PLAN, settings)]
    knowing = {spec.name for spec in specs if "sesame" in str(dict(spec.environ))}
    assert knowing == {"generator"}
    assert not [spec.name for spec in specs if "sesame" in str(spec.command)]
    for spec in services:
        assert "grouper.nprobe=3" in spec.command
        assert not any("llm.model" in part for part in spec.command)
    generator = services[SERVICES.index("generator")]
    assert generator.environ["CARPOOL_LLM_API_KEY"] == "sesame-key"
    assert generator.environ["CARPOOL_LLM_BASE_URL"] == URL
    assert generator.environ["CARPOOL_LLM_MODEL"] == "model"


def test_compose_gives_the_key_to_the_generator_alone() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    names = ("CARPOOL_LLM_API_KEY", "CARPOOL_LLM_BASE_URL")
    for secret in names:
        assert [name for name, text in services.items() if secret in str(text)] == ["generator"]


def test_no_command_prints_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARPOOL_LLM_BASE_URL", URL)
    for line in ("config", "config --json", "config llm"):
        shown = carpool(line)
        assert shown.code == 0
        assert "sesame" not in shown.stdout + shown.stderr
        assert SHOWN in shown.stdout
    monkeypatch.setenv("CARPOOL_LLM_BASE_URL", URL.replace("http", "ftp"))
    refused = carpool("config")
    assert refused.code == 2
    assert "base_url" in refused.stderr
    assert "sesame" not in refused.stdout + refused.stderr


def test_no_error_names_the_password(tmp_path: Path) -> None:
    assert OpenAiLlm(LlmSettings(base_url=URL)).address == SHOWN
    (tmp_path / "manifest.json").touch()
    settings = load(CarpoolSettings, given(None, [f"index.dir={tmp_path}"]))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        closed = f"127.0.0.1:{silent.getsockname()[1]}"
        for url in (f"http://name:sesame@{closed}/v1", f"ftp://name:sesame@{closed}"):
            with pytest.raises(ConfigError, match=r"\*{8}") as refused:
                make_plan(settings, is_embedded=True, llm_url=url)
            assert "sesame" not in str(refused.value)


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_no_log_line_names_the_password(
    log_format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before, handlers = structlog.get_config(), logging.getLogger().handlers[:]
    try:
        configure_logs(service="s", log_format=log_format)  # type: ignore[arg-type]
        structlog.get_logger("x").warning(f"at {URL}", url=URL, many=[URL])
        logging.getLogger("other").warning("%s", URL)
    finally:
        logging.getLogger().handlers[:] = handlers
        structlog.configure(**before)
    printed = capsys.readouterr().err
    assert printed.count(SHOWN) == 4
    assert "sesame" not in printed


def test_what_a_command_writes_is_not_for_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0o022)
    try:
        monkeypatch.setattr("sys.argv", ["carpool", "--version"])
        with pytest.raises(SystemExit):
            main()
        assert os.umask(before) == 0o027
    finally:
        os.umask(before)

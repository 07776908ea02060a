"""What `carpool up` starts: ports, vLLM, its share of a GPU, and who is told the LLM's secrets."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from carpool.errors import ConfigError
from carpool.terminal import without_password
from carpool.vllm import (
    SMALL_MODEL_BYTES,
    VllmSettings,
    check_kv_host_policy,
    check_vllm,
    is_cpu_build,
    kv_events_in,
    model_name,
    passages_for,
    vllm_command,
    vllm_environment,
)
from cli import stack
from cli.console import people
from cli.main import main
from cli.options import Config
from cli.running import tell_ready
from cli.settings import CarpoolSettings, load
from cli.stack import (
    SERVICES,
    StackPlan,
    broker_spec,
    choose_port,
    gateway_spec,
    make_plan,
    service_specs,
    vllm_spec,
)
from generator.llm.openai_api import OpenAiLlm
from generator.settings import LlmSettings
from tests.cli.support import carpool

ROOT = Path(__file__).parents[2]
INDEX = ROOT / "tests" / "compat" / "v2-float32"
URL = "http://name:sesame@10.0.0.1:8000/v1"
SHOWN = "http://name:********@10.0.0.1:8000/v1"
GIB = 1 << 30
PLAN = StackPlan(
    bootstrap="127.0.0.1:9092",
    broker_port=9092,
    ports={"grouper": 1, "searcher": 2, "generator": 3, "indexer": 4},
    vllm_port=8000,
    gateway_port=8600,
    llm_url=URL,
    llm_model="model",
    kv_events="ipc:///run/kv-events",
)


def settings_of(*assignments: str, **flags: dict[str, Any]) -> CarpoolSettings:
    return load(CarpoolSettings, Config(assignments=list(assignments)).given(**flags))


def command_of(service: str, plan: StackPlan, *passed: str) -> list[str]:
    specs = service_specs(plan, settings_of(), passed)
    return list(specs[SERVICES.index(service)].command)


def test_a_default_port_that_is_taken_gives_way_and_a_chosen_one_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert choose_port(port, port, "the broker") not in (port, 0)
        with pytest.raises(ConfigError, match=f"port {port} for the broker is taken"):
            choose_port(port, 9092, "the broker")
    assert choose_port(port, 9092, "the broker") == port
    assert choose_port(0, 9092, "the broker") > 0


def test_a_port_that_another_up_has_chosen_and_not_bound_yet_is_in_use() -> None:
    choose = "import sys; from cli.stack import choose_port as choose; print(choose(0, 1, ''))"
    wait = "sys.stdout.flush(); sys.stdin.read()"
    command = [sys.executable, "-c", f"{choose}; {wait}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdin is not None
        port = int(other.stdout.readline())
        with pytest.raises(ConfigError, match=f"port {port} for the broker is taken"):
            choose_port(port, 9092, "the broker")
        assert choose_port(port, port, "the broker") != port
        other.stdin.close()
    assert choose_port(port, 9092, "the broker") == port, "it has ended"


def test_vllm_is_started_on_loopback_with_what_the_settings_say(tmp_path: Path) -> None:
    settings = VllmSettings(model_dir="models/tiny", extra_args=("--seed", "1"))
    endpoint = kv_events_in(tmp_path / "r")
    assert endpoint == f"ipc://{tmp_path}/r/kv-events"
    assert kv_events_in(tmp_path / ("x" * 107)) is None, "no socket has so long a path"
    command = vllm_command(settings, 8123, kv_events=endpoint)
    told = " ".join(command)
    assert "--host 127.0.0.1 --port 8123" in told
    assert "--model models/tiny --served-model-name tiny" in told
    assert told.endswith("--seed 1")
    assert ("--dtype float32" in told) is is_cpu_build()
    config = json.loads(command[command.index("--kv-events-config") + 1])
    assert config["enable_kv_cache_events"] is True
    assert (config["endpoint"], config["replay_endpoint"]) == (endpoint, f"{endpoint}.replay")
    assert "--kv-events-config" not in vllm_command(settings, 8123)
    environ = vllm_environment(
        {"VLLM_CPU_OMP_THREADS_BIND": "2-3", "CARPOOL_LLM_API_KEY": "secret"}
    )
    assert environ["HF_HUB_OFFLINE"] == "1"
    assert "CARPOOL_LLM_API_KEY" not in environ
    assert environ["VLLM_CPU_OMP_THREADS_BIND"] == "2-3"
    assert (vllm_environment({}).get("VLLM_CPU_KVCACHE_SPACE") == "1") == is_cpu_build()


def test_vllm_with_a_kv_cache_on_the_host_is_told_its_bytes_and_its_policy() -> None:
    settings = VllmSettings(kv_host_bytes=1 << 34, kv_host_policy="arc", extra_args=("--seed", "1"))
    command = vllm_command(settings, 8123)
    option = json.loads(command[command.index("--kv-transfer-config") + 1])
    told = option["kv_connector_extra_config"]
    assert (told["cpu_bytes_to_use"], told["eviction_policy"]) == (1 << 34, "arc")
    assert command[-2:] == ["--seed", "1"], "the last one wins"
    assert "--kv-transfer-config" not in vllm_command(VllmSettings(), 8123)
    paths = vllm_environment({"PYTHONPATH": "/mine"})["PYTHONPATH"].split(":")
    assert paths[1:] == ["/mine"]
    assert (Path(paths[0]) / f"{told['cache_policy_module_path']}.py").is_file()


def test_vllm_on_the_cpu_has_no_second_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").touch()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr("carpool.vllm.is_cpu_build", lambda: True)
    settings = VllmSettings(model_dir=str(tmp_path), kv_host_bytes=1)
    with pytest.raises(ConfigError, match="kv_host_bytes needs a GPU"):
        check_vllm(settings)
    check_vllm(VllmSettings(model_dir=str(tmp_path)))


def test_a_vllm_that_cannot_load_the_policy_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "vllm" / "v1" / "kv_offload" / "cpu" / "policies"
    folder.mkdir(parents=True)
    (tmp_path / "vllm" / "__init__.py").touch()
    (folder / "factory.py").touch()  # as of an older vLLM
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"cannot import name 'CachePolicyF.*kv_host_policy"):
        check_kv_host_policy("pgdsf")


def test_a_folder_without_a_model_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--llm"):
        check_vllm(VllmSettings(model_dir=str(tmp_path)))
    assert model_name(VllmSettings(model_dir=f"{tmp_path}/x/")) == "x"


def test_a_model_of_small_weights_gets_one_passage_unless_a_number_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    vllm = VllmSettings(model_dir=str(tmp_path))
    assert passages_for(vllm) is None
    for size_bytes, passages in ((1_000, 1), (SMALL_MODEL_BYTES, None)):
        with (tmp_path / "model.safetensors").open("wb") as file:
            file.truncate(size_bytes)
        assert passages_for(vllm) == passages

    chosen = Config(assignments=["generator.concurrency=3"]).given()
    assert chosen.is_default("generator", "passages_max")
    monkeypatch.setenv("CARPOOL_GENERATOR_PASSAGES_MAX", "3")
    assert not chosen.is_default("generator", "passages_max")
    for plan, is_one in ((replace(PLAN, passages_max=1), True), (PLAN, False)):
        assert ("generator.passages_max=1" in command_of("generator", plan)) is is_one
        tell_ready(plan, settings_of(), people())
        said = "model is a small model and mixes passages up, so a prompt has 1 passage"
        assert (said in capsys.readouterr().err) is is_one


def test_the_generator_follows_the_kv_events_of_the_vllm_that_is_started_with_it() -> None:
    assert f"llm.kv_events={PLAN.kv_events}" in command_of("generator", PLAN)
    assert str(PLAN.kv_events) in " ".join(vllm_spec(PLAN, settings_of()).command)
    elsewhere = replace(PLAN, vllm_port=None, kv_events=None)
    command = command_of("generator", elsewhere, "--set", "llm.kv_events=tcp://h:1")
    assert command.count("llm.kv_events=tcp://h:1") == 1
    assert "llm.kv_events=" not in command, "another server's events are as it is set"


def plan_of(*assignments: str, **flags: dict[str, Any]) -> StackPlan:
    own = (f"index.dir={INDEX}", f"searcher.shard_bytes={GIB}")
    free = ("vllm.port=0", "up.broker_port=0", "up.http_port=0")
    settings = settings_of(*own, *free, *assignments, **flags)
    return make_plan(settings, is_embedded=True, llm_url=None)


def test_up_starts_both_on_one_gpu_only_where_vllm_is_told_its_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stack, "is_cpu_build", lambda: False)
    monkeypatch.setattr(stack, "check_vllm", lambda settings: None)
    assert plan_of(vllm={"extra_args": ("--gpu_memory_utilization=0.7",)}).shares_gpu
    with pytest.raises(ConfigError, match="--gpu-memory-utilization"):
        plan_of()
    assert not plan_of("llm.engine=none").shares_gpu
    assert not plan_of("searcher.shard_bytes=0").shares_gpu


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


def test_the_key_and_the_url_reach_the_generator_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARPOOL_LLM_API_KEY", "sesame-key")
    monkeypatch.setenv("CARPOOL_LLM_BASE_URL", URL)
    settings = settings_of()
    passed = Config(
        assignments=[f"llm.base_url={URL}", "llm.model=other", "grouper.nprobe=3"]
    ).passed_on()
    services = service_specs(PLAN, settings, passed)
    others = (broker_spec(PLAN, settings.up), vllm_spec(PLAN, settings))
    specs = [*services, *others, gateway_spec(PLAN, settings, passed)]
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
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    for secret in ("CARPOOL_LLM_API_KEY", "CARPOOL_LLM_BASE_URL"):
        assert [name for name, text in compose.items() if secret in str(text)] == ["generator"]


def test_no_command_and_no_error_names_the_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert OpenAiLlm(LlmSettings(base_url=URL)).address == SHOWN
    (tmp_path / "manifest.json").touch()
    for url in ("http://name:sesame@127.0.0.1:9/v1", "ftp://name:sesame@127.0.0.1"):
        with pytest.raises(ConfigError, match=r"\*{8}") as error:
            make_plan(settings_of(f"index.dir={tmp_path}"), is_embedded=True, llm_url=url)
        assert "sesame" not in str(error.value)
    monkeypatch.setenv("CARPOOL_LLM_BASE_URL", URL)
    monkeypatch.setenv("CARPOOL_LLM_API_KEY", "sesame-open")
    monkeypatch.setenv("CARPOOL_KAFKA_SASL_PASSWORD", "sesame-too")
    for line in ("config", "config --json", "config llm"):
        shown = carpool(line)
        assert shown.code == 0
        assert "sesame" not in shown.stdout + shown.stderr
        assert SHOWN in shown.stdout and "********" in shown.stdout
    monkeypatch.setenv("CARPOOL_LLM_BASE_URL", URL.replace("http", "ftp"))
    refused = carpool("config")
    assert refused.code == 2 and "base_url" in refused.stderr
    assert "sesame" not in refused.stdout + refused.stderr


def test_what_a_command_writes_is_not_for_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0o022)
    try:
        monkeypatch.setattr("sys.argv", ["carpool", "--version"])
        with pytest.raises(SystemExit):
            main()
        assert os.umask(before) == 0o027
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    ("arguments", "chars"),
    [
        ([], 10_000),
        (["--max-model-len", "2048"], 3 * (2_048 - 128)),
        (["--max-model-len=2048"], 3 * (2_048 - 128)),
        (["--max-model-len", "32768"], 10_000),
        (["--max-model-len", "auto"], 10_000),
    ],
)
def test_a_prompt_has_no_more_characters_than_the_context_of_the_vllm_that_is_started(
    arguments: list[str], chars: int
) -> None:
    settings = settings_of(vllm={"extra_args": arguments})
    generator = service_specs(PLAN, settings, ())[SERVICES.index("generator")].command
    assert f"generator.prompt_chars_max={chars}" in generator
    other = service_specs(replace(PLAN, vllm_port=None), settings, ())[-1].command
    assert not any("prompt_chars_max" in part for part in other)

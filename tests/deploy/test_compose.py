"""The compose stack: valid, complete under each profile, hardened, and its commands are commands
that run.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from carpool.settings import load_settings
from carpool.vllm import KV_POLICY, VllmSettings, kv_transfer_config
from cli.settings import CarpoolSettings
from tests.cli.support import carpool

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "docker-compose.yml"
THREE_BROKERS = ROOT / "docker-compose.three-brokers.yml"
GPU_SHARD = ROOT / "docker-compose.gpu-shard.yml"
KV_HOST = ROOT / "docker-compose.kv-host.yml"
PROFILES: tuple[tuple[str, ...], ...] = ((), ("cpu",), ("gpu",))
RUN_AS_NON_ROOT_BY_THEIR_IMAGE = {"kafka", "kafka-ui"}
END_BY_THEMSELVES = {"topics", "index", "models"}


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))[
        "services"
    ]
    return found


def enabled(profiles: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    return {
        name: it
        for name, it in services().items()
        if not it.get("profiles") or set(profiles) & set(it["profiles"])
    }


@pytest.mark.compose
@pytest.mark.parametrize("profiles", PROFILES, ids=lambda profiles: "+".join(profiles) or "none")
def test_the_specifications_own_parser_accepts_it_complete(profiles: tuple[str, ...]) -> None:
    here = enabled(profiles)
    waits = {(name, other) for name, it in here.items() for other in it.get("depends_on", {})}
    assert {pair for pair in waits if pair[1] not in here} == set()
    document = yaml.safe_load(COMPOSE.read_text(encoding="utf-8")) | {"services": here}
    # Next to the real one: paths in it are relative.
    reduced = ROOT / f".carpool-compose-test-{os.getpid()}.yml"
    reduced.write_text(yaml.safe_dump(document), encoding="utf-8")
    try:
        assert set(parse(reduced)["services"]) == set(here)
    finally:
        reduced.unlink()


def parse(*files: Path) -> dict[str, Any]:
    """Returns what the specification's own parser makes of the files."""
    done = subprocess.run(
        [os.environ["CARPOOL_COMPOSE_CONFIG"], "-format", "json", *files],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", sorted(services()))
def test_a_service_gives_up_what_it_does_not_need_and_its_image_is_pinned(name: str) -> None:
    it = services()[name]
    assert it["cap_drop"] == ["ALL"]
    assert it["security_opt"] == ["no-new-privileges:true"]
    assert not it.get("privileged")
    assert it.get("user", "0").split(":")[0] != "0" or name in RUN_AS_NON_ROOT_BY_THEIR_IMAGE
    assert all(str(port).startswith("127.0.0.1:") for port in it.get("ports", []))
    assert ("healthcheck" in it) is (name not in END_BY_THEMSELVES)
    assert "mem_limit" in it, "no service may take all memory of the machine"
    image, _, tag = it["image"].rpartition(":")
    assert image and not image.startswith("bitnami/")
    assert any(character.isdigit() for character in tag)


def environment(service: dict[str, Any]) -> dict[str, str]:
    pairs = (line.partition("=") for line in service["environment"])
    return {name: value for name, _, value in pairs}


@pytest.mark.compose
def test_three_brokers_differ_in_what_must_differ_and_everybody_knows_all_of_them() -> None:
    parsed = parse(COMPOSE, THREE_BROKERS)["services"]
    brokers = {name: parsed[name] for name in ("kafka", "kafka-2", "kafka-3")}
    settings = {name: environment(it) for name, it in brokers.items()}
    voters = ",".join(f"{it['KAFKA_NODE_ID']}@{name}:9093" for name, it in settings.items())
    for name, it in settings.items():
        (port,) = brokers[name]["ports"]
        (data,) = brokers[name]["volumes"]
        assert it["KAFKA_CONTROLLER_QUORUM_VOTERS"] == voters
        assert port["host_ip"] == "127.0.0.1"
        assert f"OUTSIDE://:{port['target']}" in it["KAFKA_LISTENERS"]
        outside = f"INSIDE://{name}:9092,OUTSIDE://localhost:{port['published']}"
        assert it["KAFKA_ADVERTISED_LISTENERS"] == outside
        assert data["source"] == f"{name}-data"
        assert brokers[name]["cap_drop"] == ["ALL"] and "mem_limit" in brokers[name]
    assert len({it["ports"][0]["published"] for it in brokers.values()}) == 3
    everywhere = ",".join(f"{name}:9092" for name in brokers)
    for name in ("topics", "grouper", "searcher", "generator", "indexer"):
        assert environment(parsed[name])["CARPOOL_KAFKA_BOOTSTRAP"] == everywhere
    assert set(parsed["topics"]["depends_on"]) == set(brokers)


@pytest.mark.compose
def test_with_a_shard_on_the_gpu_the_searcher_has_the_gpu_and_waits_for_vllm() -> None:
    alone = parse(COMPOSE)["services"]
    shared = parse(COMPOSE, GPU_SHARD)["services"]
    searcher = shared["searcher"]
    devices = searcher["deploy"]["resources"]["reservations"]["devices"]
    assert devices == shared["vllm-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert "CARPOOL_SEARCHER_SHARD_BYTES" in environment(searcher)
    assert set(alone["searcher"]["depends_on"]) < set(searcher["depends_on"])
    assert searcher["depends_on"]["vllm-gpu"]["condition"] == "service_healthy"
    # Without the file nothing asks for a GPU but vLLM, which has its usual share.
    assert "deploy" not in alone["searcher"]
    changed = {name for name, it in shared.items() if it != alone[name]}
    assert changed == {"searcher"}
    assert "--gpu-memory-utilization=0.92" in alone["vllm-gpu"]["command"]


@pytest.mark.compose
def test_with_a_kv_cache_on_the_host_vllm_gets_the_option_that_up_gives_it() -> None:
    alone, with_host = (parse(*files)["services"] for files in ([COMPOSE], [COMPOSE, KV_HOST]))
    assert {name for name, it in with_host.items() if it != alone[name]} == {"vllm-gpu"}
    vllm = with_host["vllm-gpu"]
    assert vllm["command"] == alone["vllm-gpu"]["command"]
    option = json.loads(environment(vllm)["KV_TRANSFER_CONFIG"])
    assert option == kv_transfer_config(VllmSettings(kv_host_bytes=8 << 30))
    mounted = {each["source"]: each["target"] for each in vllm["volumes"]}
    assert mounted[str(KV_POLICY.parent)] == environment(vllm)["PYTHONPATH"]


def test_the_script_that_starts_vllm_with_a_host_gives_it_all_arguments(tmp_path: Path) -> None:
    vllm = yaml.safe_load(KV_HOST.read_text(encoding="utf-8"))["services"]["vllm-gpu"]
    (tmp_path / "vllm").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    (tmp_path / "vllm").chmod(0o755)
    command = [each.replace("$$", "$") for each in vllm["entrypoint"]]
    done = subprocess.run(
        [*command, "--model=a b", "--served-model-name", "c"],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "KV_TRANSFER_CONFIG": '{"a": 1}'},
        capture_output=True,
        text=True,
        check=True,
    )
    told = ["serve", "--model=a b", "--served-model-name", "c", '--kv-transfer-config={"a": 1}']
    assert done.stdout.splitlines() == told


def test_prometheus_finds_every_replica_of_every_service_by_its_name() -> None:
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    found = {
        name: (each["type"], each["port"])
        for job in config["scrape_configs"]
        for each in job.get("dns_sd_configs", ())
        for name in each["names"]
    }
    ours = {"grouper", "searcher", "generator", "indexer", "gateway"}
    assert ours <= services().keys()
    assert found == dict.fromkeys(ours, ("A", 9464))
    assert not any(services()[name].get("container_name") for name in ours)


@pytest.mark.parametrize("name", ["topics", "index", "grouper", "searcher", "generator", "indexer"])
def test_the_environment_of_a_service_is_settings_that_fit(name: str) -> None:
    given = {
        variable: str(value).partition(":-")[2].rstrip("}") if "${" in str(value) else str(value)
        for variable, value in services()[name]["environment"].items()
    }
    load_settings(CarpoolSettings, file=None, environ=given)
    command = services()[name].get("command", ["index", "build"])
    assert carpool(" ".join([*command, "--help"])).code == 0

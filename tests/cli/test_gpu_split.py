"""One GPU for vLLM and a hot shard: the command that chooses, and what `carpool up` refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from carpool.errors import ConfigError
from carpool.vllm import GPU_MEMORY_OPTION
from cli import stack
from cli.all_settings import CarpoolSettings
from cli.options import given
from cli.settings import load
from cli.stack import StackPlan, make_plan
from tests.cli.support import carpool

INDEX = Path(__file__).parents[2] / "tests" / "compat" / "v2-float32"
GIB = 1 << 30
RATES = {"answers": [[GIB, 30.0], [19 * GIB, 35.0]], "searches": [[0, 10], [4 * GIB, 50]]}


def test_the_command_says_what_to_set(tmp_path: Path) -> None:
    file = tmp_path / "rates.json"
    file.write_text(json.dumps(RATES))
    command = f"index gpu-split {file} --gpu-bytes {24 * GIB}"
    split = carpool(f"{command} --json").json
    assert split["shard_bytes"] == pytest.approx(2.4 * GIB, rel=0.03)
    assert split["utilization"] == pytest.approx(0.92 - 3.4 / 24, abs=0.005)
    shown = carpool(command).stdout
    assert f"{GPU_MEMORY_OPTION}={split['utilization']:.3f}" in shown
    assert shown.splitlines()[-1] == (
        f"CARPOOL_GPU_MEMORY_UTILIZATION={split['utilization']:.3f} "
        f"CARPOOL_SEARCHER_SHARD_BYTES={split['shard_bytes']}"
    )
    file.write_text(json.dumps({"answers": [[GIB, 5]], "searches": [[0, 10]]}))
    assert "searcher.shard_bytes to 0" in carpool(command).stdout


def test_what_is_no_file_of_rates_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "rates.json"
    command = f"index gpu-split {file} --gpu-bytes {GIB}"
    assert "cannot read" in carpool(command).stderr
    file.write_text(json.dumps(RATES | {"more": 1}))
    assert "no file of rates" in carpool(command).stderr
    file.write_text(json.dumps(RATES))
    assert "--gpu-bytes" in carpool(command).stderr  # of a smaller GPU


def plan_of(**more: dict[str, Any]) -> StackPlan:
    flags: dict[str, dict[str, Any]] = {
        "index": {"dir": str(INDEX)},
        "searcher": {"shard_bytes": GIB},
        "vllm": {"port": 0},
        "up": {"broker_port": 0, "http_port": 0},
    }
    for section, values in more.items():
        flags[section] = flags.get(section, {}) | values
    settings = load(CarpoolSettings, given(None, None, **flags))
    return make_plan(settings, is_embedded=True, llm_url=None)


def test_up_starts_both_on_one_gpu_only_where_vllm_is_told_its_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stack, "is_cpu_build", lambda: False)
    monkeypatch.setattr(stack, "check_vllm", lambda settings: None)
    told = {"extra_args": ("--gpu_memory_utilization=0.7",)}
    assert plan_of(vllm=told).shares_gpu
    with pytest.raises(ConfigError, match="gpu-split"):
        plan_of()
    assert not plan_of(llm={"engine": "none"}).shares_gpu
    assert not plan_of(searcher={"shard_bytes": 0}).shares_gpu

"""`carpool up` with a shard on the GPU: vLLM and the searcher are told of one split."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from carpool.errors import ConfigError
from carpool.gpu import Gpu, measure
from carpool.vllm import GPU_MEMORY_OPTION, VllmSettings, last_argument, vllm_command
from cli import gpu_memory, stack
from cli.all_settings import CarpoolSettings
from cli.gpu_memory import index_shard_bytes
from cli.options import given
from cli.settings import load
from cli.stack import StackPlan, make_plan, service_specs, vllm_spec
from tests.cli.support import carpool
from tests.cli.test_model_memory import SMOLLM2_135M, model

ROOT = Path(__file__).parents[2]
INDEX = ROOT / "tests" / "compat" / "v2-float32"
GPU = Gpu(name="a GPU", total_bytes=24 << 30, bytes_per_s=4.8e11, flops_per_s=7.5e13)
GIB = 1 << 30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a model with weights of 1 GiB in 16 bits, and files of rates."""
    model(tmp_path, SMOLLM2_135M, weights_bytes=GIB)
    rates: dict[str, Any] = {"retrieval": [[0, 10], [4 * GIB, 50]]}
    (tmp_path / "rates.json").write_text(
        json.dumps(rates | {"generation": [[GIB, 30.0], [19 * GIB, 35.0]]})
    )
    (tmp_path / "no-llm.json").write_text(json.dumps(rates))
    return tmp_path


@pytest.fixture(autouse=True)
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's build for CUDA, of which only the name is looked at, and a large index."""
    monkeypatch.setattr(stack, "is_cpu_build", lambda: False)
    monkeypatch.setattr(stack, "check_vllm", lambda settings: None)
    monkeypatch.setattr(gpu_memory, "index_shard_bytes", lambda settings: 20 * GIB)


def settings_of(folder: Path, **more: dict[str, Any]) -> CarpoolSettings:
    flags: dict[str, dict[str, Any]] = {
        "index": {"dir": str(INDEX)},
        "vllm": {"model_dir": str(folder), "dtype": "auto", "port": 0},
        "searcher": {"shard": "gpu"},
        "up": {f"{name}_port": 0 for name in ("broker", "grouper", "searcher", "generator")},
    }
    for section, values in more.items():
        flags[section] = flags.get(section, {}) | values
    return load(CarpoolSettings, given(None, None, **flags))


def plan_of(settings: CarpoolSettings, gpu: Gpu = GPU) -> StackPlan:
    return make_plan(settings, is_embedded=True, llm_url=None, find_gpu=lambda: gpu)


def told(plan: StackPlan, settings: CarpoolSettings) -> tuple[str | None, str | None, str | None]:
    """What vLLM and the searcher are started with: vLLM's share, the shard and its bytes."""
    searcher = next(spec for spec in service_specs(plan, settings, []) if spec.name == "searcher")
    values = dict(part.split("=", 1) for part in searcher.command if part.startswith("searcher."))
    share = last_argument(vllm_spec(plan, settings).command, GPU_MEMORY_OPTION)
    return share, values.get("searcher.shard"), values.get("searcher.shard_bytes_max")


def test_with_rates_both_are_told_of_the_split_with_most_questions(folder: Path) -> None:
    settings = settings_of(folder, up={"gpu_rates": str(folder / "rates.json")})
    share, shard, shard_bytes = told(plan_of(settings), settings)
    # 19 GiB for both: 10 + 10 a GiB of the shard meet 30 + 5 / 18 a GiB of the KV cache over 1.
    assert int(shard_bytes or 0) == pytest.approx(2.43 * GIB, rel=0.03)
    assert float(share or 0) == pytest.approx((23 - 2.43) / 24, abs=0.005)
    assert shard == "gpu"
    enough = settings_of(
        folder,
        up={"gpu_rates": str(folder / "rates.json")},
        searcher={"shard_queries_per_s": 20},
    )
    assert int(told(plan_of(enough), enough)[2] or 0) == pytest.approx(GIB, rel=0.05)


def test_no_shard_is_larger_than_the_index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    settings = settings_of(folder)
    assert 115 * 60 * 2 < index_shard_bytes(settings) < GIB


def test_bytes_that_are_set_are_kept_and_vllm_has_the_rest(folder: Path) -> None:
    settings = settings_of(folder, searcher={"shard_bytes_max": 5 * GIB})
    # 24 GiB, less 5 for the shard and 1 for the searcher itself.
    assert told(plan_of(settings), settings) == ("0.75", "gpu", str(5 * GIB))


def test_vllms_own_option_wins_and_the_shard_has_the_rest(folder: Path) -> None:
    args = {"extra_args": (f"{GPU_MEMORY_OPTION}=0.5",)}
    settings = settings_of(folder, vllm=args, searcher={"shard_bytes_max": 20 * GIB})
    assert told(plan_of(settings), settings) == ("0.5", "gpu", str(11 * GIB))
    with pytest.raises(ConfigError, match="no share"):
        plan_of(settings_of(folder, vllm={"extra_args": (GPU_MEMORY_OPTION, "all")}))


def test_a_length_that_is_no_number_is_refused(folder: Path) -> None:
    settings = settings_of(folder, vllm={"extra_args": ("--max-model-len", "16k")})
    with pytest.raises(ConfigError, match="--max-model-len"):
        plan_of(settings)


def test_where_the_llm_is_the_slower_side_vllm_is_started_as_without_a_shard(folder: Path) -> None:
    slow_llm = {"retrieval": [[0, 100]], "generation": [[19 * GIB, 10]]}
    (folder / "slow.json").write_text(json.dumps(slow_llm))
    settings = settings_of(folder, up={"gpu_rates": str(folder / "slow.json")})
    assert told(plan_of(settings), settings) == (None, "none", "0")


def test_nothing_is_shared_with_a_server_that_is_not_started_here(folder: Path) -> None:
    settings = settings_of(folder, llm={"engine": "none"})
    plan = make_plan(settings, is_embedded=True, llm_url=None, find_gpu=lambda: GPU)
    assert plan.gpu_split is None
    without = settings_of(folder, searcher={"shard": "none"})
    assert told(make_plan(without, is_embedded=True, llm_url=None), without) == (None, None, None)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "searcher.shard_bytes_max"),
        ({"searcher": {"shard_bytes_max": 30 * GIB}}, "at most"),
        (
            {"vllm": {"model_tokens_max": 2_000_000}, "searcher": {"shard_bytes_max": 1}},
            "too small",
        ),
        ({"up": {"gpu_rates": "nowhere.json"}}, "cannot read"),
        ({"up": {"gpu_rates": "config.json"}}, "no file of rates"),
    ],
)
def test_what_cannot_be_shared_is_refused_with_what_to_change(
    more: dict[str, Any], said: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigError, match=said):
        plan_of(settings_of(folder, **more))


def test_a_machine_without_a_gpu_refuses_a_shard_on_it(folder: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ConfigError, match=r"searcher\.shard=none"):
        make_plan(settings_of(folder), is_embedded=True, llm_url=None)


def test_what_a_device_copies_and_computes_is_measured() -> None:
    bytes_per_s, flops_per_s = measure("cpu", copy_bytes=1 << 22, matrix_rows=64)
    assert 1e6 < bytes_per_s < 1e13
    assert 1e4 < flops_per_s < 1e16


def test_the_last_of_an_option_is_found_as_vllm_reads_it() -> None:
    extra = ("--dtype", "half", "--gpu_memory_utilization=0.3", "--max-model-len", "9")
    command = vllm_command(VllmSettings(extra_args=extra), 8000, gpu_memory_utilization=0.75)
    assert last_argument(command, "--dtype") == "half"
    assert last_argument(command, GPU_MEMORY_OPTION) == "0.3"
    assert last_argument(command, "--max-model-len") == "9"
    assert last_argument(command, "--kv-cache-dtype") is None


def test_the_command_prints_what_the_compose_stack_is_told(folder: Path) -> None:
    stated = f"index gpu-memory {INDEX} --gpu-bytes {24 * GIB} --llm {folder} --set vllm.dtype=auto"
    ended = carpool(f"{stated} --set searcher.shard_bytes_max={5 * GIB}")
    assert ended.code == 0, ended.stderr
    assert ended.stdout.splitlines()[-2:] == [
        "CARPOOL_GPU_MEMORY_UTILIZATION=0.75",
        f"CARPOOL_SEARCHER_SHARD_BYTES_MAX={5 * GIB}",
    ]
    found = carpool(f"{stated} --rates {folder / 'rates.json'} --json").json
    assert found["shard_bytes"] == pytest.approx(2.43 * GIB, rel=0.03)
    refused = carpool(f"{stated} --rates {folder / 'no-llm.json'}")
    assert refused.code == 2
    assert "gpu_flops_per_s" in refused.stderr

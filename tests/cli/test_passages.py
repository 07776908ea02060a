"""What `carpool up` sets for the vLLM that it starts: passages of a prompt, and its KV events."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from carpool.vllm import SMALL_MODEL_BYTES, VllmSettings, passages_for
from cli.all_settings import CarpoolSettings
from cli.console import people
from cli.running import tell_ready
from cli.settings import Given, is_default, load
from cli.stack import StackPlan, service_specs, vllm_spec
from generator.settings import GeneratorSettings


@pytest.mark.parametrize(
    ("size_bytes", "passages"), [(1_000, 1), (SMALL_MODEL_BYTES, None), (None, None)]
)
def test_a_model_of_small_weights_gets_one_passage(
    tmp_path: Path, size_bytes: int | None, passages: int | None
) -> None:
    if size_bytes is not None:
        with (tmp_path / "model.safetensors").open("wb") as file:
            file.truncate(size_bytes)
    assert passages_for(VllmSettings(model_dir=str(tmp_path))) == passages


@pytest.mark.parametrize(
    ("environ", "flags", "expected"),
    [
        ({}, {}, True),
        ({"CARPOOL_GENERATOR_PASSAGES_MAX": "3"}, {}, False),
        ({}, {"generator": {"passages_max": "3"}}, False),
        ({}, {"generator": {"concurrency": "3"}}, True),
    ],
)
def test_a_number_that_is_set_is_kept(
    environ: dict[str, str], flags: dict[str, dict[str, str]], expected: bool
) -> None:
    given = Given(file=None, environ=environ, flags=flags)
    assert is_default("generator", "passages_max", GeneratorSettings, given) is expected


@pytest.mark.parametrize("passages", [1, None])
def test_the_services_are_started_with_it_and_the_user_is_told(
    passages: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = load(CarpoolSettings, Given(file=None, environ={}, flags={}))
    plan = StackPlan(
        bootstrap="127.0.0.1:1",
        broker_port=None,
        ports={"grouper": 2, "searcher": 3, "generator": 4},
        vllm_port=5,
        llm_url="http://127.0.0.1:5/v1",
        llm_model="m",
        passages_max=passages,
    )
    (generator,) = (spec for spec in service_specs(plan, settings, []) if spec.name == "generator")
    assert ("generator.passages_max=1" in generator.command) is (passages == 1)
    tell_ready(plan, settings.up, people())
    said = "m is a small model and mixes passages up, so a prompt has 1 passage"
    assert (said in capsys.readouterr().err) is (passages == 1)


def test_the_generator_follows_the_kv_events_of_the_vllm_that_is_started_with_it() -> None:
    settings = load(CarpoolSettings, Given(file=None, environ={}, flags={}))
    plan = StackPlan(
        bootstrap="127.0.0.1:1",
        broker_port=None,
        ports={"grouper": 2, "searcher": 3, "generator": 4},
        vllm_port=5,
        llm_url="http://127.0.0.1:5/v1",
        llm_model="m",
        kv_events="ipc:///run/kv-events",
    )
    (generator,) = (spec for spec in service_specs(plan, settings, []) if spec.name == "generator")
    assert "llm.kv_events=ipc:///run/kv-events" in generator.command
    assert "ipc:///run/kv-events" in " ".join(vllm_spec(plan, settings).command)
    elsewhere = replace(plan, vllm_port=None, kv_events=None)
    *_, generator = service_specs(elsewhere, settings, ["--set", "llm.kv_events=tcp://h:1"])
    assert generator.command.count("llm.kv_events=tcp://h:1") == 1
    assert "llm.kv_events=" not in generator.command, "another server's events are as it is set"

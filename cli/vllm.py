"""The command line of the vLLM server that `carpool up` starts."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from carpool.errors import ConfigError
from cli.up_settings import VllmSettings


def model_name(settings: VllmSettings) -> str:
    """Returns the name under which the model is served: that of its folder."""
    return Path(settings.model_dir).resolve().name


def check_vllm(settings: VllmSettings) -> None:
    """Checks what can be known before it is started. Raises `ConfigError` that says what to do."""
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            "vLLM is not installed: pip install 'carpool[vllm]' (CPU) or 'carpool[gpu]'; or name a server that runs with"
            " --llm-url; or answer with passages alone: --set llm.engine=none"
        )
    folder = Path(settings.model_dir)
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"{folder} is not a model folder: it has no config.json. Name one with --llm (the demo's is made by"
            " `make setup-vllm`), or a server that runs with --llm-url"
        )


def vllm_command(settings: VllmSettings, port: int) -> list[str]:
    """Returns the command of the server on loopback. What is fitting only on a CPU is added only for the CPU build."""
    command = [
        *(sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", settings.model_dir, "--served-model-name", model_name(settings)),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", settings.dtype),
        *("--max-num-seqs", str(settings.sequences_max), "--max-model-len", str(settings.model_tokens_max)),
        *("--scheduling-policy", "priority", "--enable-prompt-tokens-details"),
        # Small models would fill their answer's JSON with white space until their tokens are spent.
        *("--structured-outputs-config", '{"backend":"xgrammar","disable_any_whitespace":true}'),
    ]
    if is_cpu_build():
        # Without compilation it is up in a minute; blocks of 32 tokens are the smallest that the CPU build takes.
        command += ["--enforce-eager", "--block-size", "32"]
    return [*command, *settings.extra_args]


def vllm_environment(settings: VllmSettings, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the server's environment: nothing is fetched or reported, and on a CPU threads are bound to cores."""
    added = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if is_cpu_build():
        cores = settings.cpu_cores or f"0-{(os.cpu_count() or 1) - 1}"
        added |= {"VLLM_CPU_KVCACHE_SPACE": str(settings.kvcache_gib), "VLLM_CPU_OMP_THREADS_BIND": cores}
        openmp = Path(sys.prefix) / "lib" / "libiomp5.so"
        if openmp.exists():  # without Intel's OpenMP the threads are not bound
            added["LD_PRELOAD"] = str(openmp)
    return {name: value for name, value in environ.items() if not name.startswith("CARPOOL_")} | added


def is_cpu_build() -> bool:
    """Returns whether the vLLM that is installed is its CPU build."""
    try:
        importlib.metadata.version("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True

"""A vLLM server on this machine: its settings, command and environment."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from carpool.errors import ConfigError
from carpool.settings import Settings

SMALL_MODEL_BYTES = 1 << 30
GPU_MEMORY_OPTION = "--gpu-memory-utilization"
"""vLLM's share of the memory of a GPU, 0 to 1; without it 0.92 (vLLM 0.32)."""
LENGTH_OPTION, CONTEXT_TOKENS = "--max-model-len", 4_096
CHARS_A_TOKEN = 3
"""English has four, most other texts fewer."""
SOCKET_PATH_BYTES_MAX = 107
"""What the kernel takes as the path of a socket."""
KV_POLICY = Path(__file__).parent / "kv_policies" / "pgdsf.py"
"""The policy that vLLM does not have itself. Its process imports the module by its name alone."""

KvHostPolicy = Literal["lru", "arc", "pgdsf"]


class VllmSettings(Settings, frozen=True, kw_only=True):
    """The vLLM server that `carpool up` starts without --llm-url."""

    model_dir: Annotated[
        str,
        Meta(min_length=1, description="Folder of the model: config.json, tokenizer and weights."),
    ] = ".carpool/models/smollm2-135m-instruct"
    port: Annotated[int, Meta(ge=0, le=65_535, description="Port of its API; 0: a free one.")] = (
        8000
    )
    kv_host_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Bytes of the host's memory, in /dev/shm, for a second KV cache behind the "
            "GPU's; 0: none. It has copies of most of what the GPU has: take several times that.",
        ),
    ] = 0
    kv_host_policy: Annotated[
        KvHostPolicy,
        Meta(description="What leaves it first: lru and arc are vLLM's, pgdsf is RAGCache's."),
    ] = "pgdsf"
    extra_args: Annotated[
        tuple[str, ...],
        Meta(
            description="More arguments for vLLM's server, as it takes them. The last one wins, "
            "also over Carpool's: --max-num-seqs 32, --max-model-len 4096; on a CPU --dtype "
            "float32."
        ),
    ] = ()


def model_name(settings: VllmSettings) -> str:
    """Returns the served name of the model: the name of its folder."""
    return Path(settings.model_dir).resolve().name


def passages_for(settings: VllmSettings) -> int | None:
    """Returns how many passages a prompt should have for this model; None: the default.

    A small model mixes passages up: with three, SmolLM2-135M answers from the wrong one more often
    than from the best one. Small: weights of less than `SMALL_MODEL_BYTES`.
    """
    weights = Path(settings.model_dir).glob("*.safetensors")
    size_bytes = sum(path.stat().st_size for path in weights)
    return 1 if 0 < size_bytes < SMALL_MODEL_BYTES else None


def prompt_chars_for(settings: VllmSettings, max_tokens: int) -> int | None:
    """Returns how many characters of a prompt fit into the context with an answer of so many
    tokens, if a token has `CHARS_A_TOKEN`; None: the context is not known.
    """
    given = [part for each in settings.extra_args for part in each.split("=", 1)]
    length = dict(pairwise(given)).get(LENGTH_OPTION, str(CONTEXT_TOKENS))
    return max(100, CHARS_A_TOKEN * (int(length) - max_tokens)) if length.isdecimal() else None


def check_vllm(settings: VllmSettings) -> None:
    """Checks the settings before a start. Raises `ConfigError` that says what to do."""
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            "vLLM is not installed: pip install 'carpool[vllm]' (CPU) or 'carpool[gpu]'; or name a "
            "server that runs with --llm-url; or answer with passages alone: --set llm.engine=none"
        )
    folder = Path(settings.model_dir)
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"{folder} is not a model folder: it has no config.json. Name one with --llm (the "
            "demo's is made by `make setup-vllm`), or a server that runs with --llm-url"
        )
    if settings.kv_host_bytes:
        if is_cpu_build():
            raise ConfigError(
                "vllm.kv_host_bytes needs a GPU: vLLM on the CPU has one memory. Set it to 0, and "
                "VLLM_CPU_KVCACHE_SPACE to the GiB of the KV cache"
            )
        check_kv_host_policy(settings.kv_host_policy)


def check_kv_host_policy(policy: str) -> None:
    """Lets vLLM load a policy, in another process. Takes seconds. Raises `ConfigError`."""
    # A vLLM that is too old would ignore the setting, and start.
    code = (
        "from vllm.v1.kv_offload.cpu.policies.factory import CachePolicyFactory as factory; "
        f"factory.get_cache_policy_cls({policy!r}, {KV_POLICY.stem!r})(cache_capacity=1)"
    )
    python = (sys.executable, "-P", "-c", code)
    environ = vllm_environment(os.environ)
    done = subprocess.run(python, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        *_, reason = done.stderr.splitlines() or ["it was ended"]
        raise ConfigError(
            f"vLLM cannot load the policy {policy} of its host memory ({reason}): install vLLM "
            "0.32 or newer, choose another vllm.kv_host_policy, or set vllm.kv_host_bytes to 0"
        )


def kv_events_in(folder: Path) -> str | None:
    """Returns where a vLLM of this user publishes its KV events; None if the path is too long."""
    path = folder.resolve() / "kv-events"
    is_short = len(os.fsencode(path)) + len(".replay") <= SOCKET_PATH_BYTES_MAX
    return f"ipc://{path}" if is_short else None


def kv_replay_endpoint(endpoint: str) -> str:
    """Returns where a server whose KV events are at `endpoint` is asked for earlier ones.

    For `tcp` the next port, for `ipc` the path with `.replay`.
    """
    if endpoint.startswith("ipc:"):
        return f"{endpoint}.replay"
    address, _, port = endpoint.rpartition(":")
    return f"{address}:{int(port) + 1}"


def vllm_command(settings: VllmSettings, port: int, *, kv_events: str | None = None) -> list[str]:
    """Returns the command of the server on loopback; CPU options only for the CPU build.

    `kv_events`: where it publishes its KV events, an `ipc` endpoint; None: nowhere.
    """
    command = [
        *(sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", settings.model_dir, "--served-model-name", model_name(settings)),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--max-num-seqs", "32", LENGTH_OPTION, str(CONTEXT_TOKENS)),
        *("--scheduling-policy", "priority", "--enable-prompt-tokens-details"),
    ]
    if is_cpu_build():
        # Without compilation it starts in a minute. The CPU build needs blocks of 32 tokens or
        # more. float32 is the fastest on CPUs without bfloat16 units.
        command += ["--enforce-eager", "--block-size", "32", "--dtype", "float32"]
    if kv_events is not None:
        publisher = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": kv_events}
        replays = {"replay_endpoint": kv_replay_endpoint(kv_events)}
        command += ["--kv-events-config", json.dumps(publisher | replays)]
    if settings.kv_host_bytes:
        command += ["--kv-transfer-config", json.dumps(kv_transfer_config(settings))]
    return [*command, *settings.extra_args]


def kv_transfer_config(settings: VllmSettings) -> dict[str, Any]:
    """Returns vLLM's option of that name, for a KV cache in host memory."""
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "cpu_bytes_to_use": settings.kv_host_bytes,
            "eviction_policy": settings.kv_host_policy,
            "cache_policy_module_path": KV_POLICY.stem,
            "self_describing_kv_events": True,  # else they have no tokens
        },
    }


def vllm_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment: no downloads, no usage reports; on a CPU, all of its cores.

    What vLLM's own variables of `environ` say of cores and of the KV cache on a CPU stays.
    """
    added = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    paths = (str(KV_POLICY.parent), environ.get("PYTHONPATH", ""))
    added["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    if is_cpu_build():
        # vLLM by itself takes one core only.
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        added["VLLM_CPU_KVCACHE_SPACE"] = environ.get("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
        added["VLLM_CPU_OMP_THREADS_BIND"] = environ.get("VLLM_CPU_OMP_THREADS_BIND", cores)
        openmp = Path(sys.prefix) / "lib" / "libiomp5.so"
        if openmp.exists():  # without Intel's OpenMP the threads are not bound
            added["LD_PRELOAD"] = str(openmp)
    return {
        name: value for name, value in environ.items() if not name.startswith("CARPOOL_")
    } | added


def is_cpu_build() -> bool:
    """Returns whether the installed vLLM is its CPU build."""
    try:
        importlib.metadata.version("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True

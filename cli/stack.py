"""What `carpool up` starts: broker, services, vLLM, each as a child on loopback with its address
and its log.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from urllib.parse import urlsplit

from carpool.errors import ConfigError
from carpool.kafka.embedded import broker_command, broker_environment, free_port
from carpool.settings import environment_name
from carpool.terminal import without_password
from carpool.vllm import (
    GPU_MEMORY_OPTION,
    VllmSettings,
    check_vllm,
    is_cpu_build,
    kv_events_in,
    model_name,
    passages_for,
    prompt_chars_for,
    vllm_command,
    vllm_environment,
)
from cli.http import get, probe_port, probe_service, probe_vllm
from cli.services import INPUTS
from cli.settings import CarpoolSettings, UpSettings
from cli.supervise import ChildSpec
from gateway.settings import GatewaySettings

LOOPBACK = "127.0.0.1"
EMBEDDED = "embedded"
HTTP_PORT = "the pages of the services (up.http_port)"
_LLM = environment_name("llm", "")
BROKER, VLLM, GATEWAY = "broker", "vLLM", "gateway"
SERVICES = tuple(INPUTS)
PYTHON = (sys.executable, "-P", "-m", "carpool")
STOP_ORDER = (GATEWAY, *SERVICES, VLLM, BROKER)
"""The order of the work, so that each finishes what those before it wrote."""


@dataclass(frozen=True, kw_only=True)
class StackPlan:
    """The addresses of everything. `broker_port`, `vllm_port`: None where the server runs already.
    `passages_max`: passages of a prompt, for the model of the vLLM that is started; None: as the
    settings say. `kv_events`: where this vLLM publishes its KV events; None: nowhere.
    `shares_gpu`: this vLLM and the hot shard are on the same GPU.
    """

    bootstrap: str
    broker_port: int | None
    ports: dict[str, int]
    vllm_port: int | None
    gateway_port: int
    llm_url: str
    llm_model: str
    passages_max: int | None = None
    kv_events: str | None = None
    shares_gpu: bool = False

    @property
    def http(self) -> dict[str, str]:
        """Addresses of the services' HTTP pages."""
        return {name: f"{LOOPBACK}:{port}" for name, port in self.ports.items()}


def reserve(name: str) -> bool:
    """Reserves a name until this process ends; False: another `carpool up` on this network has it.

    A port that is free may be another's, whose child has not bound it yet.
    """
    with socket.socket(socket.AF_UNIX) as lock:
        try:  # an abstract name, which has no file
            lock.bind(f"\0carpool {blake2b(name.encode(), digest_size=16).hexdigest()}")
        except OSError:
            return False
        return lock.detach() >= 0  # its descriptor is never closed


def choose_port(wanted: int, default: int, name: str) -> int:
    """Returns the wanted port; a free one for 0, and where the default port is in use.

    Raises `ConfigError` when a chosen port is in use.
    """
    with socket.socket() as probe, suppress(OSError):
        # what a server that just ended left behind is free
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((LOOPBACK, wanted))
        if wanted and reserve(f"port {wanted}"):
            return wanted
    if wanted not in (0, default):
        raise ConfigError(
            f"port {wanted} for {name} is taken; choose another with --set, or 0 for a free one"
        )
    port = free_port()
    return port if reserve(f"port {port}") else choose_port(0, default, name)


def make_plan(
    settings: CarpoolSettings,
    *,
    is_embedded: bool,
    llm_url: str | None,
    chooses_passages: bool = False,
) -> StackPlan:
    """Returns the checked addresses of everything. Raises `ConfigError` that says what to do.

    `chooses_passages`: no setting says how many passages a prompt has, so the model does.
    """
    up, defaults = settings.up, UpSettings()
    broker_port = (
        choose_port(up.broker_port, defaults.broker_port, "the broker (up.broker_port)")
        if is_embedded
        else None
    )
    ports = {
        name: choose_port(up.http_port and up.http_port + nth, defaults.http_port + nth, HTTP_PORT)
        for nth, name in enumerate(SERVICES)
    }
    vllm_port = None
    if llm_url is not None:
        for url in llm_url.split(","):
            _check_llm_server(url.strip())
    elif settings.llm.engine != "none":
        check_vllm(settings.vllm)
        vllm_port = choose_port(settings.vllm.port, VllmSettings().port, "vLLM (vllm.port)")
    has_shard = settings.searcher.shard == "gpu" and settings.searcher.shard_bytes > 0
    shares_gpu = has_shard and vllm_port is not None and not is_cpu_build()
    if shares_gpu:
        _check_gpu_share(settings)
    return StackPlan(
        bootstrap=f"{LOOPBACK}:{broker_port}" if is_embedded else settings.kafka.bootstrap,
        broker_port=broker_port,
        ports=ports,
        vllm_port=vllm_port,
        gateway_port=choose_port(
            settings.gateway.port, GatewaySettings().port, "the gateway (gateway.port)"
        ),
        llm_url=llm_url
        or (f"http://{LOOPBACK}:{vllm_port}/v1" if vllm_port else settings.llm.base_url),
        llm_model=model_name(settings.vllm) if vllm_port else settings.llm.model,
        passages_max=passages_for(settings.vllm) if vllm_port and chooses_passages else None,
        kv_events=kv_events_in(Path(up.state_dir)) if vllm_port else None,
        shares_gpu=shares_gpu,
    )


def broker_spec(plan: StackPlan, settings: UpSettings) -> ChildSpec:
    """Returns the embedded broker. It is not restarted: its records are lost when it ends."""
    assert plan.broker_port is not None, "only the embedded broker is started here"
    return ChildSpec(
        name=BROKER,
        command=broker_command(plan.broker_port),
        environ=broker_environment(),
        log_file=Path(settings.state_dir) / "broker.log",
        probe=partial(probe_port, plan.bootstrap),
        address=plan.bootstrap,
        is_restarted=False,
    )


def vllm_spec(plan: StackPlan, settings: CarpoolSettings) -> ChildSpec:
    """Returns the vLLM server."""
    assert plan.vllm_port is not None, "only a local vLLM is started here"
    address = f"{LOOPBACK}:{plan.vllm_port}"
    return ChildSpec(
        name=VLLM,
        command=vllm_command(settings.vllm, plan.vllm_port, kv_events=plan.kv_events),
        environ=vllm_environment(os.environ),
        log_file=Path(settings.up.state_dir) / "vllm.log",
        probe=partial(probe_vllm, address),
        address=address,
        is_patient=True,  # a large model loads for longer than anyone can know
    )


def service_specs(
    plan: StackPlan, settings: CarpoolSettings, passed: Sequence[str]
) -> list[ChildSpec]:
    """Returns the services, with the settings of this call and the plan's addresses."""
    own = [
        f"kafka.bootstrap={plan.bootstrap}",
        f"index.dir={settings.index.dir}",
        f"embedding.model={settings.embedding.model}",
        f"http.host={LOOPBACK}",
    ]
    if plan.vllm_port:
        own.append("llm.sends_priority=true")  # ours is started with the scheduler that takes it
        own.append(f"llm.kv_events={plan.kv_events or ''}")
        ours = settings.generator
        chars_max = prompt_chars_for(settings.vllm, ours.max_tokens) or ours.prompt_chars_max
        own.append(f"generator.prompt_chars_max={min(chars_max, ours.prompt_chars_max)}")
    if plan.passages_max is not None:
        own.append(f"generator.passages_max={plan.passages_max}")
    arguments = [*_without_llm_server(passed), *(part for text in own for part in ("--set", text))]
    return [
        ChildSpec(
            name=name,
            command=[*PYTHON, name, *arguments, "--port", str(plan.ports[name])],
            environ=_environment(plan, name),
            log_file=Path(settings.up.state_dir) / f"{name}.log",
            probe=partial(probe_service, address),
            address=address,
        )
        for name, address in plan.http.items()
    ]


def gateway_spec(plan: StackPlan, settings: CarpoolSettings, passed: Sequence[str]) -> ChildSpec:
    """Returns the gateway. It does not print its key: what it prints is logged."""
    own = ["--bootstrap", plan.bootstrap, "--port", str(plan.gateway_port), "--no-tell"]
    own += ["--set", "http.port=0", "--set", f"http.host={LOOPBACK}"]
    address = f"{LOOPBACK}:{plan.gateway_port}"
    return ChildSpec(
        name=GATEWAY,
        command=[*PYTHON, GATEWAY, *_without_llm_server(passed), *own],
        environ=_environment(plan, GATEWAY),
        log_file=Path(settings.up.state_dir) / f"{GATEWAY}.log",
        probe=partial(probe_port, address),
        address=address,
    )


def _environment(plan: StackPlan, service: str) -> dict[str, str]:
    """Returns the environment of a service. Only the generator's names the LLM server and its key.

    Every user of the machine can read the arguments of a process, but not its environment.
    """
    own = {"CARPOOL_LLM_BASE_URL": plan.llm_url, "CARPOOL_LLM_MODEL": plan.llm_model}
    others = {name: value for name, value in os.environ.items() if not name.startswith(_LLM)}
    return dict(os.environ) | own if service == "generator" else others


def _without_llm_server(passed: Sequence[str]) -> list[str]:
    """Returns the options without those whose value is in the plan: the last option would win."""
    planned = ("llm.base_url=", "llm.model=")
    options, values = passed[::2], passed[1::2]  # each option has one value
    return [
        part
        for option, value in zip(options, values, strict=True)
        if not value.strip().startswith(planned)
        for part in (option, value)
    ]


def newest_index(settings: CarpoolSettings, *, is_embedded: bool) -> str:
    """Returns the folder of the index to begin with; "" where there is none, and one can be made.

    The embedded broker keeps nothing, so it begins with the base that was saved last. Raises
    `ConfigError` for a folder with something else.
    """
    # They need NumPy, which the base install lacks.
    from carpool.corpus.base_folders import BASES_FOLDER
    from carpool.disk.manifest import MANIFEST_NAME

    folder = Path(settings.index.dir)
    saved = sorted((folder / BASES_FOLDER).glob(f"*/{MANIFEST_NAME}")) if is_embedded else []
    if saved:
        return str(saved[-1].parent)
    if (folder / MANIFEST_NAME).is_file():
        return settings.index.dir
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(
            f"{settings.index.dir} has files, and no index: make one with `carpool index build "
            f"CORPUS.jsonl --out {settings.index.dir}`, or name another with --index"
        )
    return ""


def _check_gpu_share(settings: CarpoolSettings) -> None:
    """vLLM takes nearly the whole GPU by default."""
    names = [part.partition("=")[0].replace("_", "-") for part in settings.vllm.extra_args]
    if GPU_MEMORY_OPTION not in names:
        raise ConfigError(
            "searcher.shard_bytes with vLLM on one GPU: nothing says what vLLM may take. Set "
            f"{GPU_MEMORY_OPTION} in vllm.extra_args, too; docs/guides/hot-shard.md says how to "
            "choose both"
        )


def _check_llm_server(llm_url: str) -> None:
    url, shown = urlsplit(llm_url), without_password(llm_url)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ConfigError(f"--llm-url {shown!r} is no URL such as http://127.0.0.1:8000/v1")
    status, reason = get(f"{llm_url.rstrip('/')}/models", 5.0)
    if status == 0:
        raise ConfigError(
            f"no LLM server answers at {shown} ({reason.decode(errors='replace')}): start it, or "
            "correct --llm-url"
        )

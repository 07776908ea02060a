"""The LLM server of a run: one that runs already, or a vLLM that the run starts."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from bench.core.stack import LOOPBACK, ServiceProcess
from carpool.errors import CarpoolError, ConfigError
from carpool.kafka.embedded import free_port
from carpool.vllm import (
    VllmSettings,
    check_vllm,
    kv_events_in,
    model_name,
    passages_for,
    vllm_command,
    vllm_environment,
)

START_TIMEOUT_S = 600.0
TIMEOUT_S = 30.0


class LlmAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where the server is. `is_own`: the run started it, as `carpool up` does.

    `passages_max`: of a prompt, as `carpool up` chooses for the model; None: the default.
    `kv_events`: where it publishes its KV events; None: nowhere that is known.
    """

    url: str
    model: str
    is_own: bool
    passages_max: int | None = None
    kv_events: str | None = None

    @property
    def root(self) -> str:
        """Where vLLM has what is not OpenAI's: beside /v1."""
        return self.url.rstrip("/").removesuffix("/v1")

    def count_tokens(self, text: str) -> int | None:
        """Returns the number of tokens of `text`; None where the server has no /tokenize. Blocks.

        Raises `CarpoolError` where the server no longer answers.
        """
        body = {"model": self.model, "prompt": text, "add_special_tokens": False}
        status, reply = _request(f"{self.root}/tokenize", body)
        return int(reply["count"]) if status == 200 and "count" in reply else None

    def metrics(self) -> list[Sample]:
        """Returns the samples of its page of metrics. Raises `CarpoolError` where it has none."""
        page = f"{self.root}/metrics"
        try:
            with urllib.request.urlopen(page, timeout=TIMEOUT_S) as reply:  # noqa: S310
                text = reply.read().decode()
        except OSError as error:
            raise CarpoolError(f"the LLM server shows no metrics at {page}: {error}") from error
        return [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]


@contextmanager
def llm_server(
    url: str | None,
    model: str | None,
    model_dir: str | None,
    folder: Path,
    extra_args: tuple[str, ...] = (),
) -> Iterator[LlmAddress]:
    """Yields the server at `url`, or a vLLM with the model of `model_dir`, which it ends.

    `extra_args`: of the vLLM that is started.

    Raises `ConfigError` where there is none, `CarpoolError` where vLLM does not start.
    """
    if url is not None:
        yield LlmAddress(url=url, model=model or _first_model(url), is_own=False)
        return
    with own_vllm(model_dir, folder, extra_args) as (address, _):
        yield address


@contextmanager
def own_vllm(
    model_dir: str | None, folder: Path, extra_args: tuple[str, ...] = ()
) -> Iterator[tuple[LlmAddress, ServiceProcess]]:
    """Yields a vLLM that the run starts, and its process. See `llm_server`."""
    settings = VllmSettings(extra_args=extra_args)
    if model_dir:
        settings = msgspec.structs.replace(settings, model_dir=model_dir)
    check_vllm(settings)
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    kv_events = kv_events_in(folder)
    process = ServiceProcess(
        vllm_command(settings, port, kv_events=kv_events),
        environ=vllm_environment(os.environ),
        port=port,
        log_file=folder / "vllm.log",
        ready_page="/health",
    )
    process.start()
    try:
        process.wait_ready(START_TIMEOUT_S)
        address = LlmAddress(
            url=f"http://{LOOPBACK}:{port}/v1",
            model=model_name(settings),
            is_own=True,
            passages_max=passages_for(settings),
            kv_events=kv_events,
        )
        yield address, process
    finally:
        process.stop()


def _first_model(url: str) -> str:
    status, reply = _request(f"{url.rstrip('/')}/models")
    names = [str(each["id"]) for each in reply.get("data", ()) if "id" in each]
    if status != 200 or not names:
        raise ConfigError(
            f"the server at {url} lists no models (HTTP {status}); --llm-url ends in /v1, for vLLM"
        )
    return names[0]


def _request(url: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
    """Returns the status and the JSON object of a reply; ({}) where it is none."""
    request = urllib.request.Request(  # noqa: S310 - the URL that the user named
        url,
        data=None if body is None else msgspec.json.encode(body),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:  # noqa: S310
            return reply.status, msgspec.json.decode(reply.read(), type=dict[str, Any])
    except urllib.error.HTTPError as error:
        return error.code, {}
    except msgspec.DecodeError:
        return 200, {}
    except (OSError, ValueError) as error:
        raise CarpoolError(f"no LLM server answers at {url}: {error}") from error

"""How long an LLM's steps take on a GPU, alone and while another process scans a hot shard.

The LLM has the shape of SmolLM2 135M and random weights, since time depends on the shape only. It
runs in transformers, as servers run it: one CUDA graph a step, where there can be one.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event
from typing import Annotated, Any

import msgspec
import typer

from bench.core.command import command_of
from bench.core.options import JsonOption
from bench.core.run import BenchRun

CONTEXT_TOKENS = 512
STEPS = (*(("decode", batch) for batch in (1, 8, 32, 128)), *(("prefill", n) for n in (1, 4, 16)))
SHAPE = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
SCAN_ROWS = 200_000
SCAN_BATCH = 64
SECONDS = 1.5
REPEATS_MIN = 5


class StepOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How long do the steps of a small LLM take, alone and beside scans of a hot shard?"""

    device: Annotated[str, typer.Option("--device", help="cuda or cpu.")] = "cuda"
    json_file: JsonOption = None


def scan_for_ever(device: str, is_wanted: Event, is_over: Event, times: Any) -> None:
    """Scans a shard of `SCAN_ROWS` while `is_wanted`, and sends the median time of each spell."""
    from bench.gpu.scans import COUNT, FilledShard

    shard = FilledShard(device, "float16", SCAN_ROWS, nprobe=85)
    work = [(shard.queries(SCAN_BATCH), shard.all_probes(SCAN_BATCH)) for _ in range(8)]
    times.send(0.0)  # ready
    while not is_over.is_set():
        is_wanted.wait()
        took_s: list[float] = []
        while is_wanted.is_set() and not is_over.is_set():
            began_s = time.perf_counter()
            shard.device.scan(*work[len(took_s) % len(work)], COUNT)
            took_s.append(time.perf_counter() - began_s)
        times.send(1e3 * statistics.median(took_s or [0.0]))


class Steps:
    """A model on a device, and its steps as functions that can be called again and again."""

    def __init__(self, device: str) -> None:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        self.torch: Any = torch
        self.device = device
        torch.manual_seed(0)
        model: Any = LlamaForCausalLM(LlamaConfig(**SHAPE))
        self.model = model.to(device=device, dtype=torch.bfloat16).eval()

    def prefill(self, batch: int) -> Callable[[], Any]:
        """Returns a step that computes prompts of `CONTEXT_TOKENS` tokens."""
        ids = self.torch.randint(0, 49152, (batch, CONTEXT_TOKENS), device=self.device)
        return lambda: self.model(ids, use_cache=True, logits_to_keep=1)

    def decode(self, batch: int) -> Callable[[], Any]:
        """Returns a step that computes the next token of sequences of `CONTEXT_TOKENS` tokens.

        transformers copies the KV cache in each step, which a server with paged memory does not.
        """
        cache = self.prefill(batch)().past_key_values
        layers = [(layer.keys, layer.values) for layer in cache.layers]
        ids = self.torch.randint(0, 49152, (batch, 1), device=self.device)

        def step() -> Any:
            # The last step has appended its token to a copy: each step begins with the same tokens.
            for layer, (keys, values) in zip(cache.layers, layers, strict=True):
                layer.keys, layer.values = keys, values
            return self.model(ids, past_key_values=cache, use_cache=True)

        return step

    def graph(self, step: Callable[[], Any]) -> Callable[[], Any] | None:
        """Returns `step` as a CUDA graph; None where it cannot be one."""
        if self.device != "cuda":
            return None
        side = self.torch.cuda.Stream()
        try:
            with self.torch.cuda.stream(side):
                step()
            self.torch.cuda.synchronize()
            graph = self.torch.cuda.CUDAGraph()
            with self.torch.cuda.graph(graph):
                step()
        except RuntimeError:
            return None
        replay: Callable[[], Any] = graph.replay
        return replay

    def time_ms(self, step: Callable[[], Any]) -> float:
        """Returns the median milliseconds of a step, waited for each time."""
        took_s: list[float] = []
        step()
        until_s = time.perf_counter() + SECONDS / 3
        while len(took_s) < REPEATS_MIN or time.perf_counter() < until_s:
            self.wait()
            began_s = time.perf_counter()
            step()
            self.wait()
            took_s.append(time.perf_counter() - began_s)
        return 1e3 * statistics.median(took_s)

    def wait(self) -> None:
        """Blocks until the device is idle."""
        if self.device == "cuda":
            self.torch.cuda.synchronize()


def run(options: StepOptions) -> bool:
    """Measures and reports; returns True.

    Median ms of a step, alone and beside scans; of a scan, alone and beside steps. `weights_bytes`
    and `copied_bytes_per_s`: what bounds a step of one sequence from below.
    """
    from bench.gpu.scans import copy_bytes_per_s

    run, device = BenchRun("llm-steps", options), options.device
    context = multiprocessing.get_context("spawn")
    is_wanted, is_over = context.Event(), context.Event()
    ours, theirs = context.Pipe()
    arguments = (device, is_wanted, is_over, theirs)
    scanner = context.Process(target=scan_for_ever, args=arguments, daemon=True)
    scanner.start()
    steps = Steps(device)
    ours.recv()
    is_wanted.set()
    time.sleep(SECONDS)
    is_wanted.clear()
    found: dict[str, Any] = {"scan alone": {"scan_ms": ours.recv()}}
    with steps.torch.inference_mode():
        for kind, batch in STEPS:
            if device != "cuda" and batch > 1:
                continue
            step = getattr(steps, kind)(batch)
            graph = steps.graph(step)
            row = {"is_graph": graph is not None, "ms": steps.time_ms(graph or step)}
            is_wanted.set()
            row["ms_beside_scans"] = steps.time_ms(graph or step)
            is_wanted.clear()
            found[f"{kind} {batch}"] = row | {"scan_ms": ours.recv()}
            run.note(f"{kind} {batch}: {row}")
            del step, graph
    is_over.set()
    is_wanted.set()
    results = {
        "device": steps.torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "weights_bytes": sum(one.nbytes for one in steps.model.parameters()),
        "copied_bytes_per_s": copy_bytes_per_s(device),
        "context_tokens": CONTEXT_TOKENS,
        "steps": found,
    }
    scanner.join(10)
    return run.finish(found, promises={}, results=results)


if __name__ == "__main__":
    typer.run(command_of(StepOptions, "bench.gpu.llm_steps"))

"""How long an LLM's steps take on a GPU, alone and while another process scans a hot shard.

The LLM has the shape of SmolLM2 135M and random weights, since time depends on the shape only. It
runs in transformers: in one CUDA graph a step, as servers run it, and call by call.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import msgspec

from carpool.terminal import TerminalConsole

CONTEXT_TOKENS = 512
DECODE_BATCHES = (1, 8, 32, 128)
PREFILL_BATCHES = (1, 4, 16)
SCAN_ROWS = 200_000
SCAN_BATCH = 64
SECONDS = 1.5
REPEATS_MIN = 5


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """Median times of a step: call by call, as a CUDA graph, and as a graph beside scans.

    `tokens`: of each sequence that the step computes. None: not measured.
    """

    kind: str
    batch: int
    tokens: int
    eager_ms: float
    graph_ms: float | None
    graph_ms_beside_scans: float | None
    eager_ms_beside_scans: float | None


class LlmSteps(msgspec.Struct, frozen=True, kw_only=True):
    """All steps. `scan_ms`, `scan_ms_beside_steps`: median of scans alone, and beside steps.

    `weights_bytes`, `copied_bytes_per_s`: what bounds a step of one sequence from below.
    """

    device: str
    weights_bytes: int
    copied_bytes_per_s: float
    scan_ms: float
    scan_ms_beside_steps: float
    steps: list[StepRow]


def scan_for_ever(device: str, is_wanted: Event, is_over: Event, times: Any) -> None:
    """Scans a shard of `SCAN_ROWS` while `is_wanted`, and sends the median time of each spell."""
    from bench.gpu.scans import FilledShard, ScanOptions

    options = ScanOptions(device=device, rows=(SCAN_ROWS,), nprobe=85, seconds=0)
    shard = FilledShard(options, "float16", SCAN_ROWS)
    for cluster in range(len(shard.row_counts)):
        shard.load(cluster)
    work = [(shard.queries(SCAN_BATCH), shard.all_probes(SCAN_BATCH)) for _ in range(8)]
    times.send(0.0)  # ready
    while not is_over.is_set():
        is_wanted.wait()
        took_s: list[float] = []
        while is_wanted.is_set() and not is_over.is_set():
            began_s = time.perf_counter()
            shard.device.scan(*work[len(took_s) % len(work)], 15)
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
        shape = LlamaConfig(
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=30,
            num_attention_heads=9,
            num_key_value_heads=3,
            vocab_size=49152,
            max_position_embeddings=8192,
            tie_word_embeddings=True,
        )
        self.model: Any = LlamaForCausalLM(shape).to(device=device, dtype=torch.bfloat16).eval()
        self.weights_bytes = sum(one.nbytes for one in self.model.parameters())

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
        except RuntimeError as error:
            TerminalConsole().print(f"no graph: {error}")
            return None
        replay: Callable[[], Any] = graph.replay
        return replay

    def time_ms(self, step: Callable[[], Any] | None) -> float | None:
        """Returns the median milliseconds of a step, waited for each time."""
        if step is None:
            return None
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


def main() -> None:
    """Measures, prints, and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    device = given.device
    from bench.gpu.scans import copy_bytes_per_s

    context = multiprocessing.get_context("spawn")
    is_wanted, is_over = context.Event(), context.Event()
    ours, theirs = context.Pipe()
    scanner = context.Process(
        target=scan_for_ever, args=(device, is_wanted, is_over, theirs), daemon=True
    )
    scanner.start()
    console, steps = TerminalConsole(), Steps(device)
    ours.recv()
    is_wanted.set()
    time.sleep(SECONDS)
    is_wanted.clear()
    scan_ms = ours.recv()
    rows: list[StepRow] = []
    beside_ms: list[float] = []
    with steps.torch.inference_mode():
        for kind, make, batches in (
            ("decode", steps.decode, DECODE_BATCHES),
            ("prefill", steps.prefill, PREFILL_BATCHES),
        ):
            for batch in batches if device == "cuda" else batches[:1]:
                step = make(batch)
                graph = steps.graph(step)
                eager_ms, graph_ms = steps.time_ms(step), steps.time_ms(graph)
                is_wanted.set()
                beside_graph_ms, beside_eager_ms = steps.time_ms(graph), steps.time_ms(step)
                is_wanted.clear()
                beside_ms.append(ours.recv())
                assert eager_ms is not None
                rows.append(
                    StepRow(
                        kind=kind,
                        batch=batch,
                        tokens=CONTEXT_TOKENS if kind == "prefill" else 1,
                        eager_ms=eager_ms,
                        graph_ms=graph_ms,
                        graph_ms_beside_scans=beside_graph_ms,
                        eager_ms_beside_scans=beside_eager_ms,
                    )
                )
                console.print(str(rows[-1]))
                del step, graph
    is_over.set()
    is_wanted.set()
    result = LlmSteps(
        device=steps.torch.cuda.get_device_name() if device == "cuda" else "cpu",
        weights_bytes=steps.weights_bytes,
        copied_bytes_per_s=copy_bytes_per_s(device),
        scan_ms=scan_ms,
        scan_ms_beside_steps=statistics.median(beside_ms),
        steps=rows,
    )
    console.print(
        f"scans: {scan_ms:.3f} ms alone, {result.scan_ms_beside_steps:.3f} ms beside steps"
    )
    given.json.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1))
    scanner.join(10)


if __name__ == "__main__":
    main()

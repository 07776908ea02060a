"""The GPU of this machine: its memory, and how fast it reads and computes.

It is asked in a process of its own, because a process that has used a GPU keeps some of its memory.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import msgspec

from carpool.errors import ConfigError

TIMEOUT_S = 120
REPEATS = 5
COPY_BYTES = 1 << 28
MATRIX_ROWS = 4096
"""Large enough that a GPU is busy for a millisecond or more."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU. `bytes_per_s`, `flops_per_s`: as PyTorch copies, and multiplies in bfloat16."""

    name: str
    total_bytes: int
    bytes_per_s: float
    flops_per_s: float


def visible_gpu() -> Gpu:
    """Returns the first GPU that this process may use, measured. Blocks for some seconds.

    Raises `ConfigError` that says what to do where there is none.
    """
    command = [sys.executable, "-P", "-m", __name__]
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"the GPU did not answer within {TIMEOUT_S} s: look at it with nvidia-smi, or set "
            "searcher.shard=none"
        ) from error
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise ConfigError(
            "searcher.shard=gpu needs a GPU that PyTorch can use, and none could be measured "
            f"({lines[-1] if lines else f'exit code {done.returncode}'}). Look at it with "
            "nvidia-smi, install a PyTorch that is built for CUDA, or set searcher.shard=none"
        )
    return msgspec.json.decode(done.stdout, type=Gpu)


def measure(device: str, *, copy_bytes: int, matrix_rows: int) -> tuple[float, float]:
    """Returns the bytes a second that are read, and the floating point operations a second.

    `device`: as PyTorch names it. A copy reads and writes, so its bytes count twice. Blocks.
    """
    import torch

    def wait() -> None:
        if device != "cpu":
            torch.cuda.synchronize(device)

    source = torch.zeros(copy_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    matrix = torch.zeros(matrix_rows, matrix_rows, dtype=torch.bfloat16, device=device)
    copy_s = _fastest_s(lambda: target.copy_(source), wait)
    multiply_s = _fastest_s(lambda: matrix @ matrix, wait)
    return 2 * copy_bytes / copy_s, 2 * matrix_rows**3 / multiply_s


def _fastest_s(work: Callable[[], object], wait: Callable[[], None]) -> float:
    work()  # the first call loads what it needs
    wait()
    took_s = []
    for _ in range(REPEATS):
        begin_s = time.perf_counter()
        work()
        wait()
        took_s.append(time.perf_counter() - begin_s)
    return min(took_s)


def _main() -> None:
    import torch

    if not torch.cuda.is_available():
        build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built for CPUs"
        sys.exit(f"PyTorch {torch.__version__}, {build}, sees no CUDA device")
    bytes_per_s, flops_per_s = measure("cuda:0", copy_bytes=COPY_BYTES, matrix_rows=MATRIX_ROWS)
    about = torch.cuda.get_device_properties(0)
    found = Gpu(
        name=about.name,
        total_bytes=about.total_memory,
        bytes_per_s=bytes_per_s,
        flops_per_s=flops_per_s,
    )
    sys.stdout.write(msgspec.json.encode(found).decode())


if __name__ == "__main__":
    _main()

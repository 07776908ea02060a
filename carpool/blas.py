"""Which of its kernels OpenBLAS, the library behind NumPy's matrix products, uses. Set before NumPy is loaded, or never.

OpenBLAS picks kernels by the name of the processor, and takes AMD's newer ones (seen: EPYC with AVX-512 under 0.3.30) for
older ones that have AVX2 alone: scoring then costs twice as much.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

KERNELS_VARIABLE = "OPENBLAS_CORETYPE"
WIDE_KERNELS = ("SkylakeX", "Cooperlake", "SapphireRapids")
"""OpenBLAS's names of the kernels that are made of AVX-512."""
_NEEDED = frozenset({"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"})
_CPU_INFO = Path("/proc/cpuinfo")


def choose_kernels(cpu_info: Path = _CPU_INFO) -> None:
    """Makes OpenBLAS use AVX-512 on an AMD processor that has it. Whoever has set `OPENBLAS_CORETYPE` is not overruled.

    For this process, if it has not loaded NumPy yet, and for those that it starts. Does nothing where `cpu_info` tells nothing.
    """
    try:
        lines = cpu_info.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return
    told = {name.strip(): value for name, _, value in (line.partition(":") for line in lines)}  # cores are alike
    if told.get("vendor_id", "").strip() == "AuthenticAMD" and _NEEDED.issubset(told.get("flags", "").split()):
        os.environ.setdefault(KERNELS_VARIABLE, WIDE_KERNELS[0])


@cache
def has_wide_kernels() -> bool:
    """Whether NumPy's matrix products run on AVX-512 kernels of OpenBLAS. Imports NumPy."""
    import numpy  # noqa: F401  # the library is there to be asked once NumPy is
    from threadpoolctl import threadpool_info  # type: ignore[import-untyped]

    libraries = [library for library in threadpool_info() if library.get("user_api") == "blas"]
    of_numpy = [library for library in libraries if "numpy" in library.get("filepath", "")] or libraries
    return any(library.get("architecture") in WIDE_KERNELS for library in of_numpy)

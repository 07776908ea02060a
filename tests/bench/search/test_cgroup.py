"""Memory cgroups: made, entered, watched, removed; on folders of the test's own, and for real where
root is.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.search.cgroup import group_name, memory_group
from carpool.errors import ConfigError


def test_version_one_is_used_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("max")
    group = memory_group("cgroup", "mine", 1000, tmp_path)
    folder = tmp_path / "memory" / "mine"
    assert (folder / "memory.limit_in_bytes").read_text() == "1000"
    (folder / "memory.max_usage_in_bytes").write_text("900\n")
    (folder / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert (group.peak_bytes(), group.oom_kills()) == (900, 2)


def test_version_two_is_used_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    group = memory_group("cgroup", "mine", 1000, tmp_path)
    folder = tmp_path / "mine"
    assert (folder / "memory.max").read_text() == "1000"
    (folder / "memory.peak").write_text("900\n")
    (folder / "memory.events").write_text("low 0\noom 3\noom_kill 1\n")
    assert (group.peak_bytes(), group.oom_kills()) == (900, 1)


def test_where_there_is_no_controller_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--memory-held-by none"):
        memory_group("cgroup", "mine", 1000, tmp_path)
    assert memory_group("none", "mine", 1000, tmp_path).peak_bytes() is None


def test_groups_that_a_killed_bench_left_are_removed(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("memory")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left, alive = tmp_path / f"carpool-bench-{ended.pid}-1", tmp_path / group_name()
    left.mkdir()
    alive.mkdir()
    memory_group("cgroup", "mine", None, tmp_path)
    assert not left.exists()
    assert alive.exists()


def test_a_program_starts_inside_its_groups(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("memory")
    group = memory_group("cgroup", "mine", None, tmp_path)
    command = group.command(
        [sys.executable, "-c", "import os; print(os.getpid(), 'CARPOOL_CGROUP' in os.environ)"]
    )
    done = subprocess.run(
        command,
        env={**os.environ, **group.environment()},
        capture_output=True,
        text=True,
        check=True,
    )
    entered = (tmp_path / "mine" / "cgroup.procs").read_text().strip()
    assert done.stdout.split() == [entered, "False"]


def test_the_kernel_kills_what_takes_more_than_its_limit(cgroups: str) -> None:
    group = memory_group("cgroup", f"carpool-test-{os.getpid()}-limit", 48 << 20)
    try:
        command = group.command([sys.executable, "-c", "b = bytearray(b'x') * (200 << 20)"])
        done = subprocess.run(
            command, env={**os.environ, **group.environment()}, capture_output=True, check=False
        )
        kills, peak_bytes = group.oom_kills(), group.peak_bytes()
    finally:
        group.remove()
    assert done.returncode == -9
    assert kills >= 1
    assert peak_bytes is not None and peak_bytes <= 48 << 20

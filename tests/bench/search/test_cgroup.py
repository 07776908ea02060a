"""Memory cgroups on folders of the test's own: made and watched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.search.cgroup import MemoryGroup
from carpool.errors import ConfigError


def only_group(base: Path) -> Path:
    (found,) = base.glob(f"carpool-bench-{os.getpid()}-*")
    return found


def test_version_one_is_used_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("max")
    group = MemoryGroup(1000, tmp_path)
    folder = only_group(tmp_path / "memory")
    assert (folder / "memory.limit_in_bytes").read_text() == "1000"
    (folder / "memory.max_usage_in_bytes").write_text("900\n")
    (folder / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert (group.peak_path.read_text(), group.has_killed()) == ("900\n", True)


def test_version_two_is_used_where_it_is(tmp_path: Path) -> None:
    group = MemoryGroup(1000, tmp_path)
    folder = only_group(tmp_path)
    assert (folder / "memory.max").read_text() == "1000"
    (folder / "memory.peak").write_text("900\n")
    (folder / "memory.events").write_text("low 0\noom 3\noom_kill 0\n")
    assert (group.peak_path.read_text(), group.has_killed()) == ("900\n", False)


def test_where_there_is_no_controller_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--memory-held-by none"):
        MemoryGroup(1000, tmp_path / "nowhere")

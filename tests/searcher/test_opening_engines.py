"""Opening engines: O_DIRECT, io_uring, descriptors, and the bytes that the kernel counts."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from carpool.clock import SystemClock
from carpool.errors import ConfigError
from searcher.store import io_uring as ring
from searcher.store.factory import EngineName, open_engine
from searcher.store.files import SegmentFiles
from searcher.store.threads import ThreadEngine
from tests.searcher.block_reads import (
    ENGINE_NAMES,
    PAGE,
    Ends,
    block,
    content,
    engine_at_work,
    expected,
    refuse_direct,
)


@pytest.mark.parametrize("at", ["open", "read"])
def test_a_file_system_without_o_direct_is_refused_with_what_to_do(
    paths: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    refuse_direct(monkeypatch, at)
    with pytest.raises(ConfigError, match='direct_io = "auto"'):
        SegmentFiles(paths, "require")


@pytest.mark.parametrize("at", ["open", "read"])
@pytest.mark.parametrize("kind", ENGINE_NAMES)
def test_with_auto_it_reads_through_the_page_cache_and_says_so_once(
    paths: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch, at: str, kind: EngineName
) -> None:
    refuse_direct(monkeypatch, at)
    dropped: list[tuple[int, int, int]] = []
    monkeypatch.setattr(
        "searcher.store.files.os.posix_fadvise", lambda _, *given: dropped.append(given)
    )
    with capture_logs() as logs:
        files = SegmentFiles(paths, "auto")
        engine = open_engine(kind, files, depth=2, prefetch_depth=1, clock=SystemClock())
        engine.start(ends := Ends())
        reads = [block(1, 0, 3, 2), block(2, 1, 0, 1)]
        engine.submit(reads)
        assert ends.wait(2) == {1: None, 2: None}
        assert engine.close(30)
        files.close()
    assert not files.is_direct
    assert [content(read) for read in reads] == [expected(paths, read) for read in reads]
    assert [line["event"] for line in logs] == ["buffered reads"]
    assert sorted(dropped) == [
        (0, PAGE, os.POSIX_FADV_DONTNEED),
        (3 * PAGE, 2 * PAGE, os.POSIX_FADV_DONTNEED),
    ]


def test_files_in_memory_are_refused_or_read_as_what_has_no_o_direct(memory_folder: Path) -> None:
    path = memory_folder / "a.seg"
    path.write_bytes(bytes(PAGE))
    with pytest.raises(
        ConfigError,
        match=r"a\.seg is tmpfs, which keeps files in memory.*outside the budget.*\"auto\"",
    ):
        SegmentFiles([path], "require")
    files = SegmentFiles([path], "auto")
    assert not files.is_direct
    files.close()


def test_o_direct_is_what_segments_are_read_with(paths: tuple[Path, ...]) -> None:
    files = SegmentFiles(paths, "require")
    assert files.is_direct
    files.close()
    files.close()


def test_a_segment_that_cannot_be_opened_is_refused_by_name_and_none_stays_open(
    paths: tuple[Path, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for direct_io in ("require", "auto"):
        with pytest.raises(ConfigError, match=r"nowhere\.seg"):
            SegmentFiles((*paths, tmp_path / "nowhere.seg"), direct_io)
    refuse_direct(monkeypatch, "open")
    with pytest.raises(
        ConfigError, match=r"cannot open .*nowhere\.seg: No such file.*check the folder"
    ):
        SegmentFiles((*paths, tmp_path / "nowhere.seg"), "auto")
    assert len(os.listdir("/proc/self/fd")) == before


# ---- which engine


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.ENOMEM])
def test_where_the_kernel_refuses_io_uring_auto_takes_threads_and_says_so(
    paths: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(ring, "_call", refuse)
    files = SegmentFiles(paths, "require")
    with capture_logs() as logs:
        engine = open_engine("auto", files, depth=2, prefetch_depth=1, clock=SystemClock())
    assert isinstance(engine, ThreadEngine)
    assert [line["event"] for line in logs] == ["no io_uring"]
    assert engine.close(0.0)
    with pytest.raises(ConfigError, match='engine = "auto"'):
        open_engine("io_uring", files, depth=2, prefetch_depth=1, clock=SystemClock())
    files.close()


def test_the_engines_leave_no_descriptor_open(paths: tuple[Path, ...]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for kind in ("auto", *ENGINE_NAMES):
        with engine_at_work(kind, paths) as (engine, ends):
            engine.submit([block(1, 0, 0, 1)])
            ends.wait(1)
    assert len(os.listdir("/proc/self/fd")) == before

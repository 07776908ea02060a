"""Opening files and reads: O_DIRECT and descriptors."""

from __future__ import annotations

import mmap
import os
import random
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from carpool.errors import ConfigError
from searcher.store.files import SegmentFiles
from tests.disk.helpers import open_files_under
from tests.searcher.disks import refuse_direct

PAGE = 4096


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    folder = tmp_path_factory.mktemp("segments")
    paths = (folder / "0.seg", folder / "1.seg")
    for path, pages in zip(paths, (96, 40), strict=True):
        path.write_bytes(random.Random(3).randbytes(pages * PAGE))
    return paths


@pytest.mark.parametrize("at", ["open", "read"])
def test_without_o_direct_it_refuses_or_reads_through_the_page_cache_and_says_so_once(
    paths: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    assert SegmentFiles(paths, "require").is_direct
    refuse_direct(monkeypatch, at)
    with pytest.raises(ConfigError, match='direct_io = "auto"'):
        SegmentFiles(paths, "require")
    dropped: list[tuple[int, int, int]] = []
    monkeypatch.setattr(
        "searcher.store.files.os.posix_fadvise", lambda _, *given: dropped.append(given)
    )
    with capture_logs() as logs:
        files = SegmentFiles(paths, "auto")
        for file, page in ((0, 3), (1, 0)):
            buffer = mmap.mmap(-1, 2 * PAGE)
            assert files.fill(file, memoryview(buffer), page * PAGE) == 2 * PAGE
            assert paths[file].read_bytes()[page * PAGE :].startswith(bytes(buffer))
        files.close()
    assert not files.is_direct
    assert [line["event"] for line in logs] == ["buffered reads"]
    assert sorted(dropped) == [
        (0, 2 * PAGE, os.POSIX_FADV_DONTNEED),
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


def test_a_segment_that_cannot_be_opened_is_refused_by_name_and_none_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (there := tmp_path / "there.seg").write_bytes(bytes(PAGE))
    for direct_io in ("require", "auto"):
        with pytest.raises(ConfigError, match=r"nowhere\.seg"):
            SegmentFiles((there, tmp_path / "nowhere.seg"), direct_io)
    refuse_direct(monkeypatch, "open")
    with pytest.raises(
        ConfigError, match=r"cannot open .*nowhere\.seg: No such file.*check the folder"
    ):
        SegmentFiles((there, tmp_path / "nowhere.seg"), "auto")
    assert open_files_under(tmp_path) == []

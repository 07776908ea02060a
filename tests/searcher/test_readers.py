"""One suite over every cluster reader, then what is special about O_DIRECT."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from carpool.disk.segment import ClusterExtent, decode_cluster
from carpool.errors import ConfigError, CorruptionError, RetryableError
from searcher.store.direct import DirectReader
from searcher.store.memory import MemoryReader
from searcher.store.none import NoReader
from searcher.store.reader import ClusterReader, allocate_pages
from tests.searcher.helpers import SmallIndex, random_index


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> SmallIndex:
    return random_index(tmp_path_factory.mktemp("index"), rows=2_000)


def refuse_direct(monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """Makes the file system refuse O_DIRECT when a file is opened, or when it is read, as some do."""
    real_open, real_preadv, direct = os.open, os.preadv, set()

    def fake_open(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & os.O_DIRECT and at == "open":
            raise OSError(errno.EINVAL, "Invalid argument")
        file = real_open(path, flags, *rest, **named)
        if flags & os.O_DIRECT:
            direct.add(file)
        else:
            direct.discard(file)
        return file

    def fake_preadv(file: int, *rest: Any) -> int:
        if file in direct and at == "read":
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_preadv(file, *rest)

    monkeypatch.setattr("searcher.store.direct.os.open", fake_open)
    monkeypatch.setattr("searcher.store.direct.os.preadv", fake_preadv)


@pytest.fixture(params=["direct", "buffered", "memory", "none"])
def reader(request: pytest.FixtureRequest, index: SmallIndex, monkeypatch: pytest.MonkeyPatch) -> Any:
    made: ClusterReader
    match request.param:
        case "direct":
            made = DirectReader(index.segment_path, "require")
        case "buffered":
            refuse_direct(monkeypatch, "open")
            made = DirectReader(index.segment_path, "auto")
        case "memory":
            made = MemoryReader(index.segment_path.read_bytes())
        case _:
            made = NoReader()
    yield made
    made.close()


def read_all(reader: ClusterReader, index: SmallIndex) -> list[bytes]:
    """Every extent, by four threads at once; of each whether it failed is the same for all readers that have data."""

    def read(extent: ClusterExtent) -> bytes:
        pages = allocate_pages(extent.size_bytes)
        reader.read_into(extent, pages)
        return bytes(pages)

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(read, index.extents * 4))


def test_a_read_fills_the_whole_buffer_or_fails(reader: ClusterReader, index: SmallIndex) -> None:
    segment = index.segment_path.read_bytes()
    if isinstance(reader, NoReader):
        for extent in index.extents:
            with pytest.raises(RetryableError, match=f"cluster {extent.cluster} "):
                reader.read_into(extent, allocate_pages(extent.size_bytes))
        return
    contents = read_all(reader, index)
    for extent, content in zip(index.extents * 4, contents, strict=True):
        assert content == segment[extent.offset_bytes : extent.offset_bytes + extent.size_bytes]
        decode_cluster(content, extent, index.manifest.dimension)


def test_an_extent_past_the_end_of_the_segment_is_damage_with_its_place(
    reader: ClusterReader, index: SmallIndex
) -> None:
    last = index.extents[-1]
    size_bytes = last.size_bytes + 8192
    beyond = ClusterExtent(
        cluster=last.cluster, offset_bytes=last.offset_bytes, size_bytes=size_bytes, row_count=1, crc32=0
    )
    with pytest.raises((CorruptionError, RetryableError)) as caught:
        reader.read_into(beyond, allocate_pages(size_bytes))
    if isinstance(reader, NoReader):
        assert isinstance(caught.value, RetryableError)
    else:
        assert isinstance(caught.value, CorruptionError)
        assert caught.value.offset_bytes == index.segment_path.stat().st_size
        assert str(last.cluster) in str(caught.value)


def test_a_buffer_of_another_size_is_a_fault_of_the_caller(reader: ClusterReader, index: SmallIndex) -> None:
    extent = index.extents[0]
    for size_bytes in (extent.size_bytes - 4096, extent.size_bytes + 4096):
        with pytest.raises(ValueError, match="buffer"):
            reader.read_into(extent, allocate_pages(size_bytes))


def test_the_buffer_stays_the_callers(reader: ClusterReader, index: SmallIndex) -> None:
    extent = index.extents[0]
    pages = allocate_pages(extent.size_bytes)
    if isinstance(reader, NoReader):
        with pytest.raises(RetryableError):
            reader.read_into(extent, pages)
    else:
        reader.read_into(extent, pages)
    pages.close()  # raises BufferError where the reader has kept a view


def test_a_closed_reader_fails_its_reads_and_may_be_closed_again(reader: ClusterReader, index: SmallIndex) -> None:
    reader.close()
    reader.close()
    with pytest.raises(RetryableError):
        reader.read_into(index.extents[0], allocate_pages(index.extents[0].size_bytes))


def test_an_input_output_error_may_be_retried_and_names_the_place(
    index: SmallIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = DirectReader(index.segment_path, "require")

    def fail(*_: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("searcher.store.direct.os.preadv", fail)
    extent = index.extents[1]
    with pytest.raises(RetryableError, match=rf"cluster 1 at byte {extent.offset_bytes} .*Input/output error"):
        reader.read_into(extent, allocate_pages(extent.size_bytes))
    reader.close()


def test_a_read_that_comes_in_pieces_is_put_together(index: SmallIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = DirectReader(index.segment_path, "require")
    real = os.preadv
    monkeypatch.setattr(
        "searcher.store.direct.os.preadv",
        lambda file, buffers, offset: real(file, [buffers[0][:4096]], offset),
    )
    extent = max(index.extents, key=lambda extent: extent.size_bytes)
    assert extent.size_bytes > 2 * 4096
    pages = allocate_pages(extent.size_bytes)
    reader.read_into(extent, pages)
    decode_cluster(pages, extent, index.manifest.dimension)
    reader.close()


def test_o_direct_is_what_the_segment_is_read_with(index: SmallIndex) -> None:
    reader = DirectReader(index.segment_path, "require")
    assert reader.is_direct
    reader.close()


@pytest.mark.parametrize("at", ["open", "read"])
def test_a_file_system_without_o_direct_is_refused_with_what_to_do(
    index: SmallIndex, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    refuse_direct(monkeypatch, at)
    with pytest.raises(ConfigError, match='direct_io = "auto"'):
        DirectReader(index.segment_path, "require")


@pytest.mark.parametrize("at", ["open", "read"])
def test_with_auto_it_reads_through_the_page_cache_and_says_so_once(
    index: SmallIndex, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    refuse_direct(monkeypatch, at)
    dropped: list[tuple[int, int, int]] = []
    monkeypatch.setattr("searcher.store.direct.os.posix_fadvise", lambda _, *given: dropped.append(given))
    with capture_logs() as logs:
        reader = DirectReader(index.segment_path, "auto")
        for extent in index.extents[:2]:
            reader.read_into(extent, allocate_pages(extent.size_bytes))
    assert not reader.is_direct
    assert [line["event"] for line in logs] == ["buffered reads"]
    assert dropped == [(e.offset_bytes, e.size_bytes, os.POSIX_FADV_DONTNEED) for e in index.extents[:2]]
    reader.close()


def test_a_segment_that_cannot_be_opened_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.seg"):
        DirectReader(tmp_path / "nowhere.seg", "auto")

"""Read latencies of EdgeRAG's cache are measured past the page cache."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from bench.baselines import read_latencies as module
from bench.baselines.read_latencies import read_latencies_us
from carpool.disk.direct import NoDirectReadError, open_direct
from carpool.disk.index import OpenIndex, open_index
from carpool.errors import ConfigError, CorruptionError
from tests.clocks import HandClock
from tests.indexer.helpers import build, write_corpus


@pytest.fixture
def index_dir(tmp_path: Path) -> Path:
    build(write_corpus(tmp_path / "c.jsonl", 120), tmp_path / "index", segment_bytes_max=4096 * 4)
    return tmp_path / "index"


@pytest.fixture
def index(index_dir: Path) -> OpenIndex:
    index = open_index(index_dir)
    index.close()
    try:
        os.close(open_direct(index.segment_paths[0]))
    except NoDirectReadError as error:
        pytest.skip(f"this file system {error}")
    return index


class SlowRounds(HandClock):
    """A clock by which the reads take these times, one after the other."""

    def __init__(self, took_us: list[int]) -> None:
        super().__init__()
        self._steps = iter([step for took in took_us for step in (1, took)])

    def now_us(self) -> int:
        self.time_us += next(self._steps)
        return self.time_us


def test_the_median_of_three_rounds_is_the_latency_of_a_cluster(index: OpenIndex) -> None:
    # 10 clusters. Whatever the order in a round, the median of its times is 70.
    took_us = [50] * 10 + [9000] * 10 + [70] * 10
    assert read_latencies_us(index, SlowRounds(took_us)) == dict.fromkeys(range(10), 70)


def test_each_round_reads_every_cluster_once_whole_in_another_order(
    index: OpenIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[tuple[str, int, int]] = []
    real = os.preadv

    def preadv(descriptor: int, buffers: list[memoryview], offset_bytes: int) -> int:
        if offset_bytes:  # at 0 no cluster begins: there it is tried whether O_DIRECT works
            reads.append(
                (os.readlink(f"/proc/self/fd/{descriptor}"), offset_bytes, len(buffers[0]))
            )
        return real(descriptor, buffers, offset_bytes)

    monkeypatch.setattr(module, "PIECE_BYTES", 4096)
    monkeypatch.setattr(os, "preadv", preadv)
    read_latencies_us(index, HandClock(step_us=1_000))
    expected = [
        (str(index.segment_paths[extent.segment]), extent.offset_bytes + page * 4096, 4096)
        for extent in index.extents
        for page in range(extent.page_count)
    ]
    third = len(reads) // 3
    rounds = [reads[:third], reads[third : 2 * third], reads[2 * third :]]
    assert [sorted(each) for each in rounds] == [sorted(expected)] * 3
    assert rounds[0] != rounds[1] != rounds[2]


def test_a_file_system_without_direct_reads_is_refused(
    index: OpenIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refusing(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(ConfigError, match=r"does not take O_DIRECT.*local disk"):
        read_latencies_us(index, HandClock(step_us=1_000))


def test_memory_is_not_measured_as_if_it_were_a_disk(index_dir: Path, memory_folder: Path) -> None:
    index = open_index(shutil.copytree(index_dir, memory_folder / "index"))
    index.close()
    with pytest.raises(ConfigError, match=r"is tmpfs, which keeps files in memory.*local disk"):
        read_latencies_us(index, HandClock(step_us=1_000))


def test_a_segment_that_was_cut_short_is_named(index: OpenIndex) -> None:
    segment = index.segment_paths[0]
    segment.write_bytes(segment.read_bytes()[:-4096])
    with pytest.raises(CorruptionError, match=segment.name):
        read_latencies_us(index, HandClock(step_us=1_000))

"""Read latencies are measured past the page cache, and replaced in the manifest as a whole."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from carpool.clock import Clock
from carpool.disk.direct import NoDirectReadError, open_direct
from carpool.disk.index import open_index
from carpool.disk.manifest import Manifest, read_manifest, write_manifest
from carpool.errors import ConfigError, CorruptionError
from indexer import profile as module
from indexer.profile import profile_index
from indexer.progress import SilentProgress
from indexer.settings import IndexerConfig, IndexerSettings
from tests.clocks import HandClock
from tests.indexer.helpers import CONFIG, build, write_corpus

NOT_PROFILED = IndexerConfig(
    embedding=CONFIG.embedding,
    indexer=IndexerSettings(profile_reads=0, shard_rows=64, segment_bytes_max=4096 * 4),
)


@pytest.fixture
def index_dir(tmp_path: Path) -> Path:
    try:
        os.close(open_direct(write_corpus(tmp_path / "c.jsonl", 120)))
    except NoDirectReadError as error:
        pytest.skip(f"this file system {error}")
    build(tmp_path / "c.jsonl", tmp_path / "index", NOT_PROFILED)
    return tmp_path / "index"


def profiled(index_dir: Path, reads: int = 1, clock: Clock | None = None) -> Manifest:
    clock = clock or HandClock(step_us=1_000)
    return profile_index(index_dir, reads=reads, clock=clock, progress=SilentProgress())


class SlowCluster(HandClock):
    """Tells a longer time for every read that another clock's reads do not explain: the `slow`-th
    of each round.
    """

    def __init__(self, took_us: list[int]) -> None:
        super().__init__()
        self._steps = iter([step for took in took_us for step in (1, took)])

    def now_us(self) -> int:
        self.time_us += next(self._steps)
        return self.time_us


def test_the_median_of_several_reads_replaces_the_profile_and_nothing_else(index_dir: Path) -> None:
    before = read_manifest(index_dir)
    assert before.read_latency_us == ()
    # Three rounds over 10 clusters; whatever the order, the median of a constant and one outlier is
    # the constant.
    took_us = [50] * 10 + [9000] * 10 + [70] * 10
    after = profiled(index_dir, reads=3, clock=SlowCluster(took_us))
    assert after.read_latency_us == (70,) * 10
    assert read_manifest(index_dir) == after
    assert msgspec.structs.replace(after, read_latency_us=()) == before
    open_index(index_dir).close()


def test_each_round_reads_every_cluster_once_whole_in_another_order(
    index_dir: Path, monkeypatch: pytest.MonkeyPatch
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
    profiled(index_dir, reads=2)
    index = open_index(index_dir)
    index.close()
    expected = [
        (str(index.segment_paths[extent.segment]), extent.offset_bytes + page * 4096, 4096)
        for extent in index.extents
        for page in range(extent.page_count)
    ]
    half = len(reads) // 2
    assert sorted(reads[:half]) == sorted(reads[half:]) == sorted(expected)
    assert reads[:half] != reads[half:]


def test_a_file_system_without_direct_reads_is_refused_and_the_profile_stays(
    index_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refusing(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", refusing)
    before = (index_dir / "manifest.json").read_bytes()
    with pytest.raises(ConfigError, match=r"O_DIRECT.*the profile stays as it was"):
        profiled(index_dir)
    assert (index_dir / "manifest.json").read_bytes() == before
    # A build goes without.
    wanted = IndexerConfig(embedding=CONFIG.embedding, indexer=IndexerSettings(shard_rows=64))
    assert (
        build(
            index_dir.parent / "c.jsonl", index_dir.parent / "other", wanted
        ).manifest.read_latency_us
        == ()
    )


def test_memory_is_not_profiled_as_if_it_were_a_disk(index_dir: Path, memory_folder: Path) -> None:
    copied = shutil.copytree(index_dir, memory_folder / "index")
    with pytest.raises(
        ConfigError,
        match=r"is tmpfs, which keeps files in memory.*the profile stays as it was.*local disk",
    ):
        profiled(copied)
    assert read_manifest(copied).read_latency_us == ()


def test_an_index_that_was_replaced_meanwhile_keeps_its_own_manifest(index_dir: Path) -> None:
    class Replacing(HandClock):
        def now_us(self) -> int:
            write_manifest(
                index_dir,
                msgspec.structs.replace(read_manifest(index_dir), index_version="another"),
            )
            return super().now_us()

    with pytest.raises(ConfigError, match="was replaced while it was read"):
        profiled(index_dir, clock=Replacing())
    assert read_manifest(index_dir).index_version == "another"
    assert read_manifest(index_dir).read_latency_us == ()


def test_what_cannot_be_profiled_is_said(index_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="build one"):
        profiled(tmp_path / "none")
    with pytest.raises(ConfigError, match="at least one read"):
        profiled(index_dir, reads=0)
    shutil.copytree(index_dir, tmp_path / "cut")
    segment = open_index(index_dir).segment_paths[0].name
    (tmp_path / "cut" / segment).write_bytes((index_dir / segment).read_bytes()[:-4096])
    with pytest.raises(CorruptionError, match=segment):
        profiled(tmp_path / "cut")

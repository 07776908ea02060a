"""The grouper as a stage: what it loads before it takes anything, and what stops it then."""

from __future__ import annotations

import threading
import zlib
from pathlib import Path

import msgspec

from carpool.disk.centroids import CENTROIDS_NAME
from carpool.disk.manifest import FileEntry, write_manifest
from carpool.disk.settings import IndexSettings
from carpool.embedding import EmbeddingSettings
from carpool.errors import CarpoolError, ConfigError
from carpool.loop.stage import Credit
from carpool.telemetry.metrics import Metrics
from grouper.build import load_work
from grouper.service import GrouperStage, build_stage
from grouper.settings import GrouperSettings
from grouper.work import WindowWork
from schemas.query import Query
from tests.clocks import NOW_US, HandClock
from tests.grouper.stage import (
    DIMENSION,
    NLIST,
    SETTINGS,
    WORDS,
    ListSink,
    Rig,
    write_index,
)
from tests.waiting import WAIT_S, wait_until


def test_until_index_and_model_are_loaded_there_is_no_credit(tmp_path: Path) -> None:
    write_index(tmp_path)
    gate = threading.Event()
    clock, sink = HandClock(), ListSink()

    def load() -> WindowWork:
        assert gate.wait(WAIT_S)
        return load_work(
            SETTINGS,
            IndexSettings(dir=str(tmp_path)),
            EmbeddingSettings(model=f"hashing:{DIMENSION}"),
            Metrics(),
            clock,
            lanes=1,
            needs_horizon=lambda _: True,
        )

    stage = GrouperStage(settings=SETTINGS, load=load, metrics=Metrics(), clock=clock)
    stage.start(sink)
    try:
        assert stage.credit() == Credit(records=0, size_bytes=0)
        assert stage.tick(NOW_US, 10) is None
        (reason,) = stage.not_ready()
        assert "being loaded" in reason
        gate.set()
        wait_until(lambda: not stage.not_ready())
        assert stage.credit().records == 48
    finally:
        stage.close()
    assert sink.failures == []


def build_fails(
    folder: Path, *, settings: GrouperSettings = SETTINGS, model: str = f"hashing:{DIMENSION}"
) -> CarpoolError:
    sink = ListSink()
    stage = build_stage(
        settings,
        IndexSettings(dir=str(folder)),
        EmbeddingSettings(model=model),
        Metrics(),
        HandClock(),
    )
    stage.start(sink)
    wait_until(lambda: bool(sink.failures))
    assert stage.credit() == Credit(records=0, size_bytes=0)
    assert stage.not_ready() == (str(sink.failures[0]),)
    stage.close()
    return sink.failures[0]


def test_a_missing_index_stops_the_service_with_how_to_build_one(tmp_path: Path) -> None:
    error = build_fails(tmp_path / "nothing")
    assert isinstance(error, ConfigError)
    assert "carpool index build" in str(error)


def test_another_embedding_model_than_the_indexs_stops_the_service(tmp_path: Path) -> None:
    write_index(tmp_path)
    error = build_fails(tmp_path, model="hashing:65")
    assert isinstance(error, ConfigError)
    assert "hashing:64" in str(error)
    assert "rebuild the index" in str(error)


def test_more_probes_than_the_index_has_clusters_stop_the_service(tmp_path: Path) -> None:
    write_index(tmp_path)
    error = build_fails(tmp_path, settings=GrouperSettings(nprobe=NLIST + 1))
    assert isinstance(error, ConfigError)
    assert "the index has 8 clusters" in str(error)


def test_damaged_centroids_stop_the_service(tmp_path: Path) -> None:
    write_index(tmp_path)
    path = tmp_path / CENTROIDS_NAME
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(bytes(content))
    assert str(path) in str(build_fails(tmp_path))


def test_centroids_of_another_build_stop_the_service(tmp_path: Path) -> None:
    manifest = write_index(tmp_path)
    content = (tmp_path / CENTROIDS_NAME).read_bytes()[::-1]
    (tmp_path / CENTROIDS_NAME).write_bytes(content)
    entry = FileEntry(size_bytes=len(content), crc32=zlib.crc32(content))
    write_manifest(tmp_path, msgspec.structs.replace(manifest, files={CENTROIDS_NAME: entry}))
    assert "another fingerprint" in str(build_fails(tmp_path))


def test_the_built_stage_plans_over_real_files(tmp_path: Path) -> None:
    write_index(tmp_path)
    sink = ListSink()
    stage = build_stage(
        GrouperSettings(),
        IndexSettings(dir=str(tmp_path)),
        EmbeddingSettings(model=f"hashing:{DIMENSION}"),
        Metrics(),
        HandClock(),
    )
    stage.start(sink)
    try:
        wait_until(lambda: not stage.not_ready())
        rig = Rig(tmp_path)
        stage.offer(rig.unit(Query(query_id="q-1", text="euler")), NOW_US)
        stage.tick(NOW_US, 0)
        wait_until(lambda: bool(sink.dones))
        assert sink.groups[0].queries[0].clusters[0] == WORDS.index("euler")
    finally:
        stage.close()

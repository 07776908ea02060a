"""The grouper as a stage: what it loads before it takes anything, and what stops it then."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from carpool.disk.centroids import CENTROIDS_NAME
from carpool.disk.manifest import MANIFEST_NAME, FileEntry, read_manifest, write_manifest
from carpool.disk.settings import IndexSettings
from carpool.embedding import EmbeddingSettings
from carpool.loop.stage import Credit
from carpool.telemetry.metrics import Metrics
from grouper.build import build_stage
from grouper.settings import GrouperSettings
from tests.clocks import HandClock
from tests.grouper.stage import DIMENSION, NLIST, SETTINGS, ListSink, Rig, running, write_index
from tests.waiting import wait_until

MODEL = f"hashing:{DIMENSION}"


def test_until_index_and_model_are_loaded_there_is_no_credit(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    assert rig.stage.credit() == Credit(records=0, size_bytes=0)
    assert rig.tick(10) is None
    (reason,) = rig.stage.not_ready()
    assert "being loaded" in reason
    with running(tmp_path) as rig:
        assert rig.stage.credit().records == 48


def damage(folder: Path) -> None:
    content = bytearray((folder / CENTROIDS_NAME).read_bytes())
    content[100] ^= 1
    (folder / CENTROIDS_NAME).write_bytes(content)


def of_another_build(folder: Path) -> None:
    content = (folder / CENTROIDS_NAME).read_bytes()[::-1]
    (folder / CENTROIDS_NAME).write_bytes(content)
    entry = FileEntry(size_bytes=len(content), crc32=zlib.crc32(content))
    manifest = read_manifest(folder)
    write_manifest(folder, msgspec.structs.replace(manifest, files={CENTROIDS_NAME: entry}))


def remove(folder: Path) -> None:
    (folder / MANIFEST_NAME).unlink()


@pytest.mark.parametrize(
    ("change", "settings", "model", "says"),
    [
        (remove, SETTINGS, MODEL, "carpool index build"),
        (None, SETTINGS, "hashing:65", "hashing:64.*rebuild the index"),
        (None, GrouperSettings(nprobe=NLIST + 1), MODEL, "the index has 8 clusters"),
        (damage, SETTINGS, MODEL, CENTROIDS_NAME),
        (of_another_build, SETTINGS, MODEL, "another fingerprint"),
    ],
)
def test_what_does_not_fit_stops_the_service_with_what_to_do(
    tmp_path: Path,
    change: Callable[[Path], None] | None,
    settings: GrouperSettings,
    model: str,
    says: str,
) -> None:
    write_index(tmp_path)
    if change is not None:
        change(tmp_path)
    sink = ListSink()
    index, embedding = IndexSettings(dir=str(tmp_path)), EmbeddingSettings(model=model)
    stage = build_stage(settings, index, embedding, Metrics(), HandClock())
    stage.start(sink)
    wait_until(lambda: bool(sink.failures))
    assert re.search(says, str(sink.failures[0]))
    assert stage.credit() == Credit(records=0, size_bytes=0)
    stage.close()

"""An index that is made the newest: a new version, and nothing else."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from carpool.disk.manifest import MANIFEST_NAME, is_newer, read_manifest
from indexer.promote import promote
from tests.cli.support import carpool
from tests.clocks import NOW_US, HandClock
from tests.e2e.support import build_index


def test_a_promoted_index_is_newer_and_otherwise_as_before(tmp_path: Path) -> None:
    index = build_index(tmp_path, documents=60, nlist=4)
    before = read_manifest(index)
    files = {path: path.read_bytes() for path in index.iterdir() if path.name != MANIFEST_NAME}
    time.sleep(1.1)  # a version has its time in seconds
    ended = carpool(f"index promote {index}")
    assert ended.code == 0, ended
    after = read_manifest(index)
    assert is_newer(after.index_version, before.index_version)
    assert after.index_version in ended.stdout.replace("\n", "")
    assert msgspec.structs.replace(after, index_version=before.index_version) == before
    assert {path: path.read_bytes() for path in files} == files
    assert carpool(f"index verify {index}").code == 0


def test_a_version_begins_with_its_time(tmp_path: Path) -> None:
    index = build_index(tmp_path, documents=60, nlist=4)
    versions = [promote(index, HandClock(NOW_US + s * 1_000_000)) for s in (0, 1, 59, 60, 9_000)]
    assert versions == sorted(versions)
    assert not is_newer(versions[0], versions[0])

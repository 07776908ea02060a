"""An index that is made the newest: a new version, and nothing else."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec

from carpool.disk.manifest import MANIFEST_NAME, is_newer, read_manifest
from indexer.write import promote
from tests.cli.support import carpool
from tests.clocks import NOW_US, HandClock
from tests.indexer.helpers import build, write_corpus


def test_a_promoted_index_is_newer_and_otherwise_as_before(tmp_path: Path) -> None:
    corpus, index = write_corpus(tmp_path / "c.jsonl", 60), tmp_path / "index"
    before = build(corpus, index, nlist=4).manifest
    files = {path: path.read_bytes() for path in index.iterdir() if path.name != MANIFEST_NAME}
    later = [promote(index, HandClock(NOW_US + s * 1_000_000)) for s in (1, 59, 60, 9_000)]
    for older, newer in pairwise([before.index_version, *later]):
        assert is_newer(newer, older) and not is_newer(newer, newer)
    ended = carpool(f"index promote {index}")
    after = read_manifest(index)
    assert ended.code == 0 and after.index_version in ended.stdout.replace("\n", "")
    assert msgspec.structs.replace(after, index_version=before.index_version) == before
    assert {path: path.read_bytes() for path in files} == files
    assert carpool(f"index verify {index}").code == 0

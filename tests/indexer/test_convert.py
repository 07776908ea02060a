"""An index of format v1 is converted: the same passages are found, now with codes."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from carpool.clock import SystemClock
from carpool.disk.index import open_index
from carpool.disk.segments import SegmentWriter
from carpool.errors import ConfigError, CorruptionError
from indexer.convert import convert_index
from indexer.progress import SilentProgress
from indexer.settings import IndexerSettings
from indexer.verify import verify_index
from searcher.local import LocalSearcher

SAMPLES = Path(__file__).parents[1] / "compat"
SETTINGS = IndexerSettings(code_rows_min=0, segment_bytes_max=16 << 10)


def convert(source: Path, out: Path, codes: str = SETTINGS.codes) -> None:
    settings = msgspec.structs.replace(SETTINGS, codes=codes)
    convert_index(source, out, settings, SystemClock(), SilentProgress())


@pytest.mark.parametrize("name", ["v1-float32", "v1-float16"])
@pytest.mark.parametrize("codes", ["rabitq4,rabitq2", "sq8,flat"])
def test_the_same_passages_are_found_and_nothing_is_damaged(
    tmp_path: Path, name: str, codes: str
) -> None:
    convert(SAMPLES / name, tmp_path / "new", codes)
    assert verify_index(tmp_path / "new", SilentProgress()).problems == ()
    old, new = (open_index(folder) for folder in (SAMPLES / name, tmp_path / "new"))
    try:
        kept = ("row_count", "nlist", "centroids_fingerprint", "embedding_model", "nprobe_default")
        for field in kept:
            assert getattr(old.manifest, field) == getattr(new.manifest, field)
        assert new.manifest.format == "v2" and len(new.manifest.codes) == 2
        assert new.manifest.index_version != old.manifest.index_version
        dimension, nlist = old.manifest.dimension, old.manifest.nlist
    finally:
        old.close()
        new.close()
    queries = np.random.default_rng(1).standard_normal((20, dimension)).astype(np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    with (
        LocalSearcher(SAMPLES / name, nprobe=nlist) as before,
        LocalSearcher(tmp_path / "new", nprobe=nlist) as after,
    ):
        for one, other in zip(
            before.search(queries), after.search(queries, mode="exact"), strict=True
        ):
            assert [hit.doc_id for hit in one.hits] == [hit.doc_id for hit in other.hits]
            assert [hit.text for hit in one.hits] == [hit.text for hit in other.hits]
            assert [hit.score for hit in one.hits] == pytest.approx(
                [hit.score for hit in other.hits]
            )
        if "flat" in codes:  # the searcher takes it, and its estimates are right
            for one, other in zip(before.search(queries), after.search(queries), strict=True):
                assert [hit.doc_id for hit in one.hits] == [hit.doc_id for hit in other.hits]


def test_a_conversion_that_was_killed_is_no_index_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SAMPLES / "v1-float32"
    convert(source, tmp_path / "whole")
    append, calls = SegmentWriter.append, 0

    def killed(self: SegmentWriter, *arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return append(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(SegmentWriter, "append", killed)
    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "new")
    with pytest.raises(ConfigError, match="no index"):
        open_index(tmp_path / "new")
    monkeypatch.undo()
    convert(source, tmp_path / "new")
    one, other = (open_index(tmp_path / name) for name in ("whole", "new"))
    one.close()
    other.close()
    assert msgspec.structs.replace(one.manifest, index_version="") == msgspec.structs.replace(
        other.manifest, index_version=""
    )


def test_what_cannot_be_converted_is_refused(tmp_path: Path) -> None:
    source = SAMPLES / "v1-float32"
    convert(source, tmp_path / "new")
    with pytest.raises(ConfigError, match="nothing to convert"):
        convert(tmp_path / "new", tmp_path / "again")
    with pytest.raises(ConfigError, match="there is an index at"):
        convert(source, tmp_path / "new")
    damaged = tmp_path / "damaged"
    shutil.copytree(source, damaged)
    segment = damaged / "clusters-000001.seg"
    content = bytearray(segment.read_bytes())
    content[5000] ^= 1
    segment.write_bytes(content)
    with pytest.raises(CorruptionError, match=r"clusters-000001.seg is wrong"):
        convert(damaged, tmp_path / "other")
    assert not (tmp_path / "other" / "manifest.json").exists()

"""The searcher answers stored indexes as they were answered when they were written."""

from __future__ import annotations

import shutil
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from carpool.codes.codec import CODEC
from carpool.codes.int4 import Encoder
from carpool.disk.extents import codes_name
from carpool.disk.index import open_index
from carpool.errors import ConfigError
from indexer.codes import make_codes
from indexer.progress import SilentProgress
from indexer.verify import verify_index
from tests.compat.make import SAMPLES, VARIANTS
from tests.compat.test_stored_indexes import SCORE_TOLERANCE, expected_of
from tests.searcher.helpers import SmallIndex, group_of, running


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_stored_index_is_searched_as_it_was(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / variant
    shutil.copytree(SAMPLES / variant, folder)
    opened = open_index(folder)
    if opened.manifest.codes[0].codec != CODEC:
        with pytest.raises(ConfigError, match=f"rabitq4.* carpool index codes {folder}"):
            opened.open_codes()
        opened.close()
        with monkeypatch.context() as broken:
            broken.setattr(Encoder, "encode", Mock(side_effect=[b"", MemoryError]))
            with pytest.raises(MemoryError):
                make_codes(folder, SilentProgress())
        assert not verify_index(folder, SilentProgress()).problems, "it was interrupted"
        make_codes(folder, SilentProgress())
        assert not verify_index(folder, SilentProgress()).problems
        assert {path.name for path in folder.glob("codes-*.bin")} == {
            codes_name(CODEC, segment) for segment in range(opened.manifest.segment_count)
        }
        opened = open_index(folder)
    opened.close()
    index = SmallIndex(
        dir=folder,
        vectors=np.empty((0, 0), dtype=np.float32),
        assigned=np.empty(0, dtype=np.int64),
        centroids=opened.centroids,
        manifest=opened.manifest,
        extents=opened.extents,
    )
    expected = expected_of(variant)
    searches = [(np.array(e.query, dtype=np.float32), e.clusters) for e in expected]
    with running(index, direct_io="auto") as stage:
        found = stage.search(group_of(opened.manifest, searches, top_k=5))
    assert len(found) == len(expected)
    for number, wanted in enumerate(expected):
        retrieval = found[f"q0-{number}"]
        assert not retrieval.skipped_clusters
        assert tuple(hit.doc_id for hit in retrieval.hits) == wanted.doc_ids
        assert tuple(hit.title for hit in retrieval.hits) == wanted.titles
        assert tuple(hit.text for hit in retrieval.hits) == wanted.texts
        assert [hit.score for hit in retrieval.hits] == pytest.approx(
            wanted.scores, abs=SCORE_TOLERANCE
        )

"""Damage as users see it: the searcher reports it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from carpool.disk.document_keys import DOCUMENT_KEYS_NAME
from carpool.disk.manifest import MANIFEST_NAME, Manifest
from schemas.record import ClusterId
from schemas.retrieval import Retrieval
from tests.disk.helpers import make_content, normalised, write_index
from tests.searcher.helpers import SmallIndex, group_of, running, small_index
from tests.seed import SEED

ROW_COUNTS = (3, 0, 40, 16, 16)
ROWS = sum(ROW_COUNTS)
CONTENT = make_content(row_counts=ROW_COUNTS)
QUERIES = normalised(np.random.default_rng(4).standard_normal((3, CONTENT.vectors.shape[1])))
SEARCHES = 30


def seeded_flips(folder: Path, manifest: Manifest, count: int) -> list[tuple[str, int, int]]:
    """File, position and change: every file in turn."""
    numbers = np.random.default_rng(SEED)
    # A search reads no table of documents.
    names = [MANIFEST_NAME, *(name for name in manifest.files if name != DOCUMENT_KEYS_NAME)]
    chosen = [names[number % len(names)] for number in range(count)]
    return [
        (name, int(numbers.integers((folder / name).stat().st_size)), int(numbers.integers(1, 256)))
        for name in chosen
    ]


def flip(path: Path, place: int, change: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= change
    path.write_bytes(content)


def exact(query: np.ndarray, skipped: tuple[ClusterId, ...]) -> list[tuple[str, str, str]]:
    """The simple reference: all rows except those of skipped clusters, best first."""
    rows = np.concatenate(
        [rows for cluster, rows in enumerate(CONTENT.clusters) if cluster not in skipped]
    )
    best = rows[np.lexsort((rows, -(CONTENT.vectors[rows] @ query)))]
    found = [CONTENT.documents[row] for row in best]
    return [(document.doc_id, document.title, document.text) for document in found]


def hits(retrieval: Retrieval) -> list[tuple[str, str, str]]:
    return [(hit.doc_id, hit.title, hit.text) for hit in retrieval.hits]


def search_everything(index: SmallIndex) -> str:
    """Searches every cluster for every row, which reads every page and every document.

    Returns "refused" if the searcher does not start, "failed" or "skipped" if every query says so,
    "whole" if nothing is missing. Asserts that every answer is right.
    """
    everywhere = tuple(range(len(ROW_COUNTS)))
    group = group_of(index.manifest, [(query, everywhere) for query in QUERIES], top_k=ROWS)
    with running(index, direct_io="auto") as stage:
        try:
            retrievals = stage.search(group)
        except AssertionError:
            assert stage.sink.failures
            return "refused"
        failed = stage.sink.answers()
        assert len(retrievals) + len(failed) == len(QUERIES)
        for number, query in enumerate(QUERIES):
            if (retrieval := retrievals.get(f"q0-{number}")) is not None:
                found = hits(retrieval)
                # Of a skipped cluster some rows may have been read.
                assert set(exact(query, retrieval.skipped_clusters)) <= set(found)
                assert found == [hit for hit in exact(query, ()) if hit in found]
        assert all(answer.status == "failed" for answer in failed.values())
        if failed:
            return "failed"
        return (
            "skipped"
            if all(retrieval.skipped_clusters for retrieval in retrievals.values())
            else "whole"
        )


def test_a_search_over_damage_is_refused_failed_or_says_what_it_skipped(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    manifest = write_index(whole, CONTENT)
    assert search_everything(small_index(whole, manifest, CONTENT)) == "whole"
    said = []
    for number, (name, place, change) in enumerate(seeded_flips(whole, manifest, SEARCHES)):
        folder = tmp_path / str(number)
        shutil.copytree(whole, folder)
        index = small_index(folder, manifest, CONTENT)
        flip(folder / name, place, change)
        said.append(search_everything(index))
        # A byte of a page without rows is not read; then every answer is right all the same.
        assert said[-1] != "whole" or name.startswith("clusters-"), (name, place, change)
        shutil.rmtree(folder)
    assert {"refused", "failed", "skipped"} <= set(said) and said.count("whole") < 3

"""A saved base is what a dict says, and is searched as a new build of the same rows."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from carpool.clock import SystemClock
from carpool.corpus.assign import assign
from carpool.digest import digest_of
from carpool.disk.document_keys import DOCUMENT_KEYS_NAME, DocumentKeys
from carpool.disk.documents import Passage
from carpool.disk.index import open_index
from carpool.disk.manifest import BaseFacts, Manifest, read_manifest, write_manifest
from carpool.disk.pages import VectorDtype
from carpool.errors import ConfigError
from cli.index import app
from indexer.empty import build_empty
from indexer.progress import ProgressReport, SilentProgress
from indexer.save import FreshDocument, save_base
from indexer.stats import index_stats
from indexer.verify import verify_index
from schemas.document import DocumentKey
from schemas.query import SearchMode
from searcher.local import LocalSearcher
from searcher.settings import SearcherSettings
from tests.clocks import HandClock
from tests.disk.helpers import Content, normalised, read_one
from tests.disk.helpers import write_index as write_content
from tests.indexer.deaths import StepCount
from tests.indexer.helpers import CONFIG
from tests.searcher.helpers import Float32, write_index

DIMENSION = 8
MODES: tuple[SearchMode, ...] = ("default", "exact")
QUERIES = normalised(np.random.default_rng(5).standard_normal((4, DIMENSION)))
FACTS = BaseFacts(position={0: 7, 3: 10**12}, vectors={0: 8}, topic="t", vectors_topic="v")


def key_of(number: int) -> DocumentKey:
    """Some documents have an owner."""
    return DocumentKey("owner" if number % 3 == 0 else "", f"d{number}")


@dataclass
class Model:
    """What a base has: rows, (document, passage, vector), by cluster."""

    centroids: Float32
    clusters: list[list[tuple[int, Passage, Float32]]] = field(default_factory=list)

    def step(self, hidden: Iterable[int], fresh: dict[int, tuple[Sequence[Passage], Any]]) -> None:
        gone = {*hidden, *fresh}
        self.clusters = [[row for row in rows if row[0] not in gone] for rows in self.clusters]
        for number, (passages, vectors) in fresh.items():
            of_rows = assign(vectors.astype(np.float32), self.centroids)
            for passage, vector, cluster in zip(passages, vectors, of_rows, strict=True):
                row = number, passage, vector.astype(np.float32)
                self.clusters[cluster].append(row)

    @property
    def rows(self) -> list[tuple[int, Passage, Float32]]:
        return [row for rows in self.clusters for row in rows]

    def write(self, folder: Path, like: Manifest) -> None:
        """Builds an index of the rows anew."""
        bounds = np.cumsum([0, *map(len, self.clusters)])
        clusters = [np.arange(start, stop) for start, stop in pairwise(bounds)]
        content = Content(
            vectors=np.array([row[2] for row in self.rows], np.float32).reshape(-1, DIMENSION),
            clusters=tuple(clusters[: like.cluster_count]),
            centroids=self.centroids,
            documents=tuple(Passage(f"{n}", "", "") for n in range(len(self.rows))),
        )
        write_content(
            folder,
            content,
            vector_dtype=like.vector_dtype,
            page_bytes=None,
            nprobe_default=1,
        )


def begin(folder: Path, rows: int, nlist: int, dtype: VectorDtype, *, has_codes: bool) -> Model:
    """Writes a first base: documents of one passage, some of them far from all centroids."""
    random = np.random.default_rng([rows, nlist])
    centroids = np.zeros((1, DIMENSION), np.float32)
    if nlist > 1:
        centroids = normalised(random.standard_normal((nlist, DIMENSION)))
    vectors = some_vectors(random, centroids, rows).astype(np.float32)
    documents = [Passage(f"d{number}", f"T{number}", f"text {number}") for number in range(rows)]
    index = write_index(
        folder,
        vectors,
        centroids,
        documents=documents,
        has_codes=has_codes,
        has_zero_cluster=bool((assign(vectors, centroids) == nlist).any()),
        vector_dtype=dtype,
    )
    model = Model(centroids, [[] for _ in range(nlist + 1)])
    for number in np.argsort(index.assigned, kind="stable").tolist():
        row = number, documents[number], vectors[number]
        model.clusters[index.assigned[number]].append(row)
    return model


def some_vectors(random: Any, centroids: Float32, rows: int) -> Any:
    """Vectors of float16, half of them near centroids."""
    vectors = random.standard_normal((rows, DIMENSION)) * 0.3
    vectors[::2] *= 4
    vectors += centroids[random.integers(len(centroids), size=rows)]
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)


def digest(number: int, *, is_first_base: bool = False) -> bytes:
    """The digest of a document; those of the first base are plain ids."""
    key = DocumentKey("", f"d{number}") if is_first_base else key_of(number)
    return digest_of(key.encode())


def check(folder: Path, model: Model, first: set[int]) -> None:
    """The rows of each cluster, the table of documents, and what is found."""
    assert verify_index(folder, SilentProgress()).problems == ()
    index = open_index(folder)
    keys = DocumentKeys.open(folder, index.manifest)
    of_places = index.documents.table.of_places
    assert of_places is not None
    numbers: dict[int, list[int]] = {}
    for cluster, rows in enumerate(model.clusters[: index.manifest.cluster_count]):
        found = read_one(index, cluster)
        assert np.array_equal(
            found.vectors, np.array([row[2] for row in rows]).reshape(-1, DIMENSION)
        )
        assert index.documents.get(found.rows.tolist()) == [row[1] for row in rows]
        for (document, _, _), number in zip(rows, of_places[found.rows].tolist(), strict=True):
            numbers.setdefault(document, []).append(number)
    assert not any(model.clusters[index.manifest.cluster_count :])
    for document, of_passages in numbers.items():
        passages = keys.passages_of(digest(document, is_first_base=document in first))
        assert list(passages) == sorted(of_passages)
    assert len(keys) == len(numbers)
    assert keys.passages_of(digest_of(b"nobody")) == range(0)
    index.close()


def check_searches(folder: Path, anew: Path, model: Model) -> None:
    model.write(anew, read_manifest(folder))
    settings = SearcherSettings(direct_io="auto", budget_bytes=16 << 20)
    with (
        LocalSearcher(folder, settings=settings) as saved,
        LocalSearcher(anew, settings=settings) as built,
    ):
        for mode in MODES:
            for nprobe in {1, len(model.centroids)}:
                pairs = zip(
                    saved.search(QUERIES, top_k=4, nprobe=nprobe, mode=mode),
                    built.search(QUERIES, top_k=4, nprobe=nprobe, mode=mode),
                    strict=True,
                )
                for mine, theirs in pairs:
                    of_rows = [model.rows[int(hit.doc_id)][1] for hit in theirs.hits]
                    assert [(hit.doc_id, hit.text) for hit in mine.hits] == [
                        (passage.doc_id, passage.text) for passage in of_rows
                    ]
                    scores = [hit.score for hit in theirs.hits]
                    assert [hit.score for hit in mine.hits] == pytest.approx(scores, abs=1e-6)


Step = tuple[list[int], dict[int, int]]
STEPS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 30), max_size=12),
        st.dictionaries(st.integers(0, 30), st.integers(1, 3), max_size=8),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(0, 20),
    nlist=st.integers(1, 4),
    dtype=st.sampled_from(["float32", "float16"]),
    has_codes=st.booleans(),
    steps=STEPS,
)
def test_saves_in_a_row_are_what_a_dict_says_and_are_searched_as_a_new_build(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    nlist: int,
    dtype: VectorDtype,
    has_codes: bool,
    steps: list[Step],
) -> None:
    folder = tmp_path_factory.mktemp("saves")
    base = folder / "base-0"
    model = begin(base, rows, nlist, dtype, has_codes=has_codes)
    first = set(range(rows))
    random, version = np.random.default_rng(rows), read_manifest(base).index_version
    name: str | None = None
    for number, (hides, puts) in enumerate(steps, 1):
        fresh = {
            one: (
                tuple(
                    Passage(key_of(one).passage(n, many), "", f"{one}.{n} of save {number}")
                    for n in range(many)
                ),
                some_vectors(random, model.centroids, many),
            )
            for one, many in puts.items()
        }
        out = folder / f"base-{number}"
        # One that is put again has another key than in the first base, if it has an owner.
        gone = [digest(one, is_first_base=one in first) for one in {*hides, *puts}]
        gone += [digest(one) for one in hides]
        documents = (FreshDocument(digest(one), *each) for one, each in fresh.items())
        made = save_base(
            base, out, FACTS, gone, documents, HandClock(step_us=1_000_000), SilentProgress()
        )
        model.step(hides, fresh)
        first -= {*hides, *puts}
        assert made == read_manifest(out) and made.row_count == len(model.rows)
        assert (made.index_version, made.nlist, made.vector_dtype) == (version, nlist, dtype)
        assert made.base is not None and made.base.predecessor == name
        assert (made.base.position, made.base.topic) == (FACTS.position, "t")
        name = made.base.name
        check(out, model, first)
        check_searches(out, folder / f"anew-{number}", model)
        assert sorted(path.name for path in out.iterdir()) == sorted([*made.files, "manifest.json"])
        base = out


def test_a_corpus_begins_with_an_empty_base_and_may_end_as_one(tmp_path: Path) -> None:
    empty, full, again = (tmp_path / name for name in ("empty", "full", "again"))
    manifest = build_empty(empty, CONFIG, SystemClock())
    vectors = normalised(np.random.default_rng(1).standard_normal((3, 16))).astype(np.float16)
    passages = tuple(Passage(f"a#{n}", "A", f"text {n}") for n in (1, 2, 3))
    document = FreshDocument(digest_of(b"a"), passages, vectors)
    made = save_base(empty, full, FACTS, [], [document], SystemClock(), SilentProgress())
    assert (made.row_count, made.nlist, made.zero_clusters) == (3, 1, ())
    assert made.index_version == manifest.index_version
    assert made.base is not None and index_stats(full).base == made.base
    assert f"{made.base.name}, after none" in CliRunner().invoke(app, ["stats", str(full)]).stdout
    with LocalSearcher(full, settings=SearcherSettings(direct_io="auto")) as searcher:
        (found,) = searcher.search(vectors[1:2].astype(np.float32), top_k=2)
        assert (found.hits[0].doc_id, found.hits[0].text) == ("a#2", "text 2")
    made = save_base(full, again, FACTS, [digest_of(b"a")], [], SystemClock(), SilentProgress())
    assert made.row_count == 0 and not verify_index(again, SilentProgress()).problems


def small_save(folder: Path, out: Path, progress: ProgressReport | None = None) -> Manifest:
    random = np.random.default_rng(3)
    centroids = np.load(folder / "centroids.npy")
    fresh = [
        FreshDocument(
            digest(n), (Passage(f"d{n}", "", f"new {n}"),), some_vectors(random, centroids, 1)
        )
        for n in range(25, 40)
    ]
    gone = [digest(n, is_first_base=True) for n in range(0, 30, 2)]
    clock = HandClock(step_us=1)
    return save_base(folder / "base", out, FACTS, gone, fresh, clock, progress or SilentProgress())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = begin(tmp_path / "base", 40, 3, "float32", has_codes=True)
    np.save(tmp_path / "centroids.npy", model.centroids)
    return tmp_path


class Cancelled(Exception):
    """Ends a save."""


def test_a_save_ends_where_its_progress_raises_and_leaves_nothing(folder: Path) -> None:
    class Stopping(ProgressReport):
        def __init__(self, left: int) -> None:
            self.left = left

        def advance(self, count: int) -> None:
            self.left -= 1
            if self.left < 0:
                raise Cancelled

    out = folder / "out"
    for steps in count():
        try:
            small_save(folder, out, Stopping(steps))
            break
        except Cancelled:
            assert list(out.iterdir()) == []
    assert steps > 30
    assert verify_index(out, SilentProgress()).problems == ()


def test_a_save_that_is_killed_at_any_step_leaves_no_index_and_begins_again(folder: Path) -> None:
    small_save(folder, folder / "whole")
    whole = contents(folder / "whole")
    for kill_at in count(1):
        out = folder / f"out-{kill_at}"
        child = os.fork()
        if child == 0:
            try:
                StepCount(kill_at)
                small_save(folder, out)
            finally:
                os._exit(0)
        if not os.WIFSIGNALED(os.waitpid(child, 0)[1]):
            break
        if (out / "manifest.json").exists():
            assert verify_index(out, SilentProgress()).problems == ()
        small_save(folder, out)
        assert contents(out) == whole
        shutil.rmtree(out)
    assert kill_at > 40


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_save_needs_a_folder_without_an_index_and_a_base_with_a_table(folder: Path) -> None:
    small_save(folder, folder / "out")
    with pytest.raises(ConfigError, match="save into another folder"):
        small_save(folder, folder / "out")
    manifest = read_manifest(folder / "base")
    files = {name: entry for name, entry in manifest.files.items() if name != DOCUMENT_KEYS_NAME}
    write_manifest(folder / "base", msgspec.structs.replace(manifest, files=files))
    with pytest.raises(ConfigError, match="carpool index codes"):
        small_save(folder, folder / "other")

"""The small files: manifest, centroids and documents; and probing."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.disk.centroids import probe
from carpool.disk.documents import DOCUMENTS_NAME, DocumentStore, DocumentWriter, Passage
from carpool.disk.manifest import MANIFEST_NAME, read_manifest
from carpool.disk.settings import IndexSettings
from carpool.errors import ConfigError, CorruptionError
from tests.disk.helpers import make_content, write_index

CONTENT = make_content()
ROWS = len(CONTENT.vectors)


def test_no_index_is_an_error_that_says_how_to_build_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such folder.*carpool index build"):
        read_manifest(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="has no manifest"):
        read_manifest(tmp_path)
    (tmp_path / ".build").mkdir()
    with pytest.raises(ConfigError, match=r"interrupted.*again"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("found", ["v1", "v3", "faiss"])
def test_a_foreign_or_newer_format_is_refused_with_rebuild(tmp_path: Path, found: str) -> None:
    (tmp_path / MANIFEST_NAME).write_text(f'{{"format":"{found}","what":"else"}}')
    with pytest.raises(ConfigError, match=f"'{found}'.*[Rr]ebuild"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"format":7}',
        b'{"format":"v2"}',
        b"\xff\xfe",
        b'{"format":"v2","manifest":{}}',
        b'{"format":"v2","crc32":1,"manifest":{}}',
    ],
)
def test_a_file_that_is_no_manifest_is_damage(tmp_path: Path, content: bytes) -> None:
    (tmp_path / MANIFEST_NAME).write_bytes(content)
    with pytest.raises(CorruptionError, match="damaged"):
        read_manifest(tmp_path)


def test_documents_come_back_in_the_order_that_was_asked_for(tmp_path: Path) -> None:
    with DocumentStore.open(tmp_path, write_index(tmp_path, CONTENT)) as store:
        assert store.get([ROWS - 1, 0, 0]) == [CONTENT.documents[row] for row in (ROWS - 1, 0, 0)]
        assert store.get([]) == []
        for row in (-1, ROWS):
            with pytest.raises(IndexError, match=str(ROWS)):
                store.get([row])


def test_a_document_above_the_limit_is_not_written(tmp_path: Path) -> None:
    writer = DocumentWriter(tmp_path, 1)
    with pytest.raises(ValueError, match="at most"):
        writer.append(Passage("big", "", "x" * (16 << 20)))
    writer.append(Passage("large", "", "x" * (15 << 20)))
    writer.close()
    with DocumentStore(tmp_path, 1, 1) as store:
        assert store.get([0])[0].doc_id == "large"


@given(
    seed=st.integers(0, 2**32 - 1),
    nlist=st.integers(1, 40),
    count=st.integers(0, 600),
    nprobe=st.integers(1, 50),
)
def test_probing_in_chunks_equals_a_stable_sort_for_every_query(
    seed: int, nlist: int, count: int, nprobe: int
) -> None:
    numbers = np.random.default_rng(seed)
    # Small whole numbers: scores are exact, so ties are equal in every chunk.
    centroids = numbers.integers(-3, 4, size=(nlist, 3)).astype(np.float32)
    queries = numbers.integers(-3, 4, size=(count, 3)).astype(np.float32)
    simple = [
        sorted(range(nlist), key=lambda c: (-float(query @ centroids[c]), c))[:nprobe]
        for query in queries
    ]
    assert probe(centroids, queries, nprobe).tolist() == simple


def test_probing_refuses_no_probes_and_a_wrong_dimension() -> None:
    centroids = np.ones((2, 3), dtype=np.float32)
    with pytest.raises(ValueError, match="nprobe is 0"):
        probe(centroids, centroids, 0)
    with pytest.raises(ValueError, match=r"expected \(n, 3\)"):
        probe(centroids, np.ones((1, 4), dtype=np.float32), 1)


def test_documents_are_stored_with_metadata_and_without_the_field(tmp_path: Path) -> None:
    plain = Passage("a", "A", "text a")
    rich = Passage("b", "B", "text b", {"url": "https://b.example", "n": [1, {"deep": None}]})
    for number, documents in enumerate(([plain], [plain, rich])):
        folder = tmp_path / str(number)
        folder.mkdir()
        writer = DocumentWriter(folder, 7)
        for document in documents:
            writer.append(document)
        writer.close()
        with DocumentStore(folder, len(documents), 7) as store:
            assert store.get(range(len(documents))) == documents
    content = (tmp_path / "0" / DOCUMENTS_NAME).read_bytes()
    assert msgspec.msgpack.decode(content) == ["a", "A", "text a"]


def test_settings_refuse_an_empty_folder() -> None:
    assert IndexSettings().check() == []
    assert len(IndexSettings(dir=" ").check()) == 1

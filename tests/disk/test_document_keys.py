"""The table of documents: which passages each has; and where each passage is."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.disk.document_keys import (
    DOCUMENT_KEYS_NAME,
    ENTRY,
    DocumentKeys,
    entries_of,
    in_order,
    merged,
    write_document_keys,
)
from carpool.disk.document_rows import NO_ROW, places_of_numbers
from carpool.disk.index import open_index
from carpool.disk.manifest import read_manifest, write_manifest
from carpool.errors import ConfigError, CorruptionError
from indexer.codes import make_codes
from indexer.progress import SilentProgress
from indexer.verify import verify_index
from indexer.write import digest_of_id
from tests.compat.make import SAMPLES
from tests.disk.helpers import entry_of, make_content, write_index

CONTENT = make_content()
ROWS = len(CONTENT.vectors)
DIGESTS = st.one_of(
    st.binary(min_size=16, max_size=16),
    # Digests of few bits, and of zeros at either end, are often neighbours.
    st.lists(st.sampled_from([0, 1, 128, 255]), min_size=16, max_size=16).map(bytes),
    st.integers(0, 3).map(lambda number: number.to_bytes(16)),
    st.integers(0, 3).map(lambda number: bytes([number]) + bytes(15)),
)


@given(
    documents=st.dictionaries(DIGESTS, st.integers(1, 5), max_size=40),
    others=st.lists(DIGESTS, max_size=10),
    split=st.integers(0, 40),
)
def test_a_document_is_found_by_its_digest_as_in_a_dict(
    tmp_path_factory: pytest.TempPathFactory,
    documents: dict[bytes, int],
    others: list[bytes],
    split: int,
) -> None:
    folder = tmp_path_factory.mktemp("keys")
    counts = np.array(list(documents.values()), np.uint32)
    entries = entries_of(b"".join(documents), counts)
    write_document_keys(folder, [entries[:split], entries[split:]])
    path = folder / DOCUMENT_KEYS_NAME
    keys = DocumentKeys(path, path.read_bytes(), int(counts.sum()))
    assert len(keys) == len(documents)
    assert np.array_equal(np.concatenate([np.empty(0, ENTRY), *keys.chunks()]), entries)
    first = 0
    for digest, count in documents.items():
        assert keys.passages_of(digest) == range(first, first + count)
        first += count
    for digest in set(others) - set(documents):
        assert keys.passages_of(digest) == range(0)


def test_a_document_that_is_there_twice_or_not_in_order_is_not_written(tmp_path: Path) -> None:
    entries = entries_of(bytes(16) + bytes(15) + b"\1", np.array([1, 1], np.uint32))
    for parts in ([entries[[0, 0]]], [entries[::-1]], [entries[1:], entries[:0], entries[:1]]):
        with pytest.raises(ValueError, match="not in order"):
            write_document_keys(tmp_path, parts)
        assert not (tmp_path / DOCUMENT_KEYS_NAME).exists()
    write_document_keys(tmp_path, [in_order(entries[::-1])])


@given(
    documents=st.dictionaries(DIGESTS, st.booleans(), max_size=40),
    splits=st.lists(st.integers(0, 40), max_size=4),
)
def test_two_tables_are_merged_in_order(documents: dict[bytes, bool], splits: list[int]) -> None:
    digests = (
        b"".join(one for one, is_new in documents.items() if is_new == b) for b in (False, True)
    )
    kept, added = (entries_of(some, np.ones(len(some) // 16, np.uint32)) for some in digests)
    parts = list(merged(np.split(kept, sorted(splits)), added))
    assert {part.dtype for part in parts} == {ENTRY}
    both = in_order(np.concatenate([kept, added], dtype=ENTRY))
    assert np.array_equal(np.concatenate(parts, dtype=ENTRY), both)
    assert both.tobytes()[:16] == min(documents, default=b"")


def test_the_table_of_an_index_has_each_passage_of_the_corpus(tmp_path: Path) -> None:
    manifest = write_index(tmp_path, CONTENT)
    keys = DocumentKeys.open(tmp_path, manifest)
    keys.check()
    assert len(keys) == ROWS
    for number, document in enumerate(CONTENT.documents):
        assert keys.passages_of(digest_of_id(document.doc_id)) == range(number, number + 1)
    assert keys.passages_of(digest_of_id("nobody")) == range(0)


def test_the_place_of_a_passage_is_that_of_its_row(tmp_path: Path) -> None:
    write_index(tmp_path, CONTENT)
    index = open_index(tmp_path)
    of_places = index.documents.table.of_places
    assert of_places is not None
    places = places_of_numbers(of_places, ROWS)
    assert of_places[places].tolist() == list(range(ROWS))
    assert len(of_places) > ROWS and (of_places == NO_ROW).sum() == len(of_places) - ROWS
    index.close()


def test_an_index_of_an_earlier_build_gets_the_table_by_a_command(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    shutil.copytree(SAMPLES / "v2-int4", folder)
    manifest = read_manifest(folder)
    with pytest.raises(ConfigError, match=f"carpool index codes {folder}"):
        DocumentKeys.open(folder, manifest)
    made = make_codes(folder, SilentProgress())
    assert made.index_version == manifest.index_version
    assert not verify_index(folder, SilentProgress()).problems
    keys = DocumentKeys.open(folder, made)
    index = open_index(folder)
    for number in range(manifest.row_count):
        digest = digest_of_id(index.documents.document(number).doc_id)
        assert keys.passages_of(digest) == range(number, number + 1)
    index.close()
    before = (folder / DOCUMENT_KEYS_NAME).stat().st_ino
    make_codes(folder, SilentProgress())
    assert (folder / DOCUMENT_KEYS_NAME).stat().st_ino == before, "it was there"


def test_a_table_that_lacks_a_passage_or_has_one_twice_is_found_by_verify(tmp_path: Path) -> None:
    manifest = write_index(tmp_path, CONTENT)
    path = tmp_path / DOCUMENT_KEYS_NAME
    good = np.fromfile(path, ENTRY)
    twice, beyond, swapped = good.copy(), good.copy(), good.copy()
    twice["first"][3] = good["first"][4]
    beyond["count"][5] = ROWS
    swapped[[6, 7]] = good[[7, 6]]
    for entries, problem in (
        (twice, "is of exactly one document"),
        (good[:-1], "is of exactly one document"),
        (beyond, "is of exactly one document"),
        (swapped, "documents are not in order"),
    ):
        path.write_bytes(entries.tobytes())
        files = manifest.files | {path.name: entry_of(path)}
        write_manifest(tmp_path, msgspec.structs.replace(manifest, files=files))
        (found,) = verify_index(tmp_path, SilentProgress()).problems
        assert problem in found and str(path) in found
        with pytest.raises(CorruptionError, match=problem):
            DocumentKeys.open(tmp_path, read_manifest(tmp_path)).check()

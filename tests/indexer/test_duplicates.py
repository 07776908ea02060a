"""Which lines have the id of an earlier one: found as a set of all ids would find them, in any
number of passes.
"""

import random
from pathlib import Path

import pytest

from carpool.disk.documents import DocumentStore
from carpool.errors import CorruptionError
from indexer import duplicates
from indexer.duplicates import IdLog, find_duplicates
from indexer.plan.passes import ID_BYTES, ID_MEMORY_MIN_BYTES, id_passes
from tests.indexer.helpers import build, write_corpus


def logged(path: Path, lines: list[tuple[int, str]]) -> Path:
    with IdLog(path) as log:
        for line, doc_id in lines:
            log.add(doc_id, line)
    return path


def found_by_a_set(lines: list[tuple[int, str]]) -> list[int]:
    seen: set[str] = set()
    repeated = []
    for line, doc_id in lines:
        if doc_id in seen:
            repeated.append(line)
        seen.add(doc_id)
    return repeated


@pytest.mark.parametrize("chunk_entries", [1, 7, 1 << 17])
@pytest.mark.parametrize("passes", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 2, 300])
def test_what_a_set_of_all_ids_finds_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, passes: int, chunk_entries: int
) -> None:
    monkeypatch.setattr(duplicates, "CHUNK_ENTRIES", chunk_entries)
    monkeypatch.setattr(duplicates, "id_passes", lambda count, *, memory_bytes: passes)
    chance = random.Random(count)
    lines = [(3 * number + 1, f"id {chance.randrange(count)}") for number in range(count)]
    expected = found_by_a_set(lines)
    found = find_duplicates(logged(tmp_path / "ids", lines), memory_bytes=1)
    assert [line for line, is_repeated in enumerate(found) if is_repeated] == expected


def test_a_file_of_ids_that_was_cut_is_an_error(tmp_path: Path) -> None:
    path = logged(tmp_path / "ids", [(1, "a"), (2, "b")])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptionError, match="cut short"):
        find_duplicates(path, memory_bytes=1 << 20)


def test_ids_that_do_not_fit_memory_take_as_many_passes_as_they_need() -> None:
    fit = ID_MEMORY_MIN_BYTES // ID_BYTES
    assert id_passes(0, memory_bytes=4096) == 1
    assert id_passes(fit, memory_bytes=4096) == 1
    assert id_passes(fit + 1, memory_bytes=4096) == 2
    assert id_passes(100_000_000, memory_bytes=1 << 30) == 11


def test_a_build_keeps_the_first_passage_of_an_id_and_lists_the_others_between_other_bad_lines(
    tmp_path: Path,
) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", 60)
    lines = corpus.read_text().splitlines()
    again = [lines[7].replace("Title 7", "Another"), lines[2], lines[7]]
    corpus.write_text(
        "\n".join([*lines[:30], "nonsense", again[0], "", *lines[30:], *again[1:]]) + "\n"
    )
    report = build(corpus, tmp_path / "index", nlist=3)
    assert report.documents.row_count == 60
    assert [(p.line, p.count) for p in report.documents.problems] == [(31, 1), (32, 3)]
    assert report.documents.problems[1].why == "duplicate id 'doc-7'"
    with DocumentStore.open(tmp_path / "index", report.manifest) as store:
        found = store.get(range(60))
    assert [document.doc_id for document in found] == [f"doc-{row}" for row in range(60)]
    assert found[7].title == "Title 7"
    assert not (tmp_path / "index" / ".build").exists()

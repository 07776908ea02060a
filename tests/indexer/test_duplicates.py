"""Which lines have the id of an earlier one: found as a set of all ids would find them."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from carpool.disk.documents import DocumentStore
from indexer.corpus import SeenIds
from tests.indexer.helpers import build, write_corpus


@given(numbers=st.lists(st.integers(0, 40), max_size=100))
def test_what_a_set_of_all_ids_finds_is_found(numbers: list[int]) -> None:
    ids, seen, expected = SeenIds(), set[int](), []
    for line, number in enumerate(numbers):
        ids.add(f"id {number}", 3 * line + 1)
        if number in seen:
            expected.append(3 * line + 1)
        seen.add(number)
    found = ids.repeated()
    assert [line for line, is_repeated in enumerate(found) if is_repeated] == expected


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

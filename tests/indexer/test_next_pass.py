"""Which texts are embedded together."""

from __future__ import annotations

from indexer.plan.next_pass import WaitingDocuments


def waiting(texts_max: int, *documents: tuple[str, int, int]) -> WaitingDocuments:
    """Prepared documents: partition, number, texts."""
    found = WaitingDocuments(texts_max)
    for partition, document, texts in documents:
        found.prepared(partition, document, texts)
    return found


def test_partitions_have_equal_shares_and_a_small_document_waits_for_a_pass() -> None:
    found = waiting(4, ("a", 1, 6), ("b", 2, 1), ("b", 3, 3))
    assert found.next_pass() == {1: 2, 2: 1, 3: 1}
    assert found.next_pass() == {1: 2, 3: 2}
    assert found.next_pass() == {1: 2}
    assert not found and found.next_pass() == {}


def test_documents_are_prepared_a_pass_of_each_partition_at_a_time() -> None:
    found = WaitingDocuments(2)
    for document in range(5):
        found.add("a", document)
    found.add("b", 5)
    assert found.to_prepare() == [0, 1, 5]
    found.prepared("a", 0, 3)
    assert found.to_prepare() == [], "those of a wait for it, and b has none"
    found.forget({0, 3})
    assert found.to_prepare() == [2, 4]
    assert not found

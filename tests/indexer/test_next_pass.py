"""Which texts are embedded together."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

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


@given(
    documents=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), max_size=12),
    texts_max=st.integers(1, 8),
)
def test_every_text_is_in_one_pass_and_documents_of_a_partition_stay_in_order(
    documents: list[tuple[int, int]], texts_max: int
) -> None:
    found = waiting(
        texts_max, *((str(partition), n, texts) for n, (partition, texts) in enumerate(documents))
    )
    left = Counter({n: texts for n, (_, texts) in enumerate(documents)})
    while found:
        before, taken = left.copy(), found.next_pass()
        left -= Counter(taken)
        assert sum(taken.values()) == min(texts_max, before.total())
        for document in taken:
            partition = documents[document][0]
            earlier = [n for n in left if n < document and documents[n][0] == partition]
            assert not earlier, "those before it have been begun"
    assert not left

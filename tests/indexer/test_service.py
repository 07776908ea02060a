"""The indexer: one record for each document, in the order of its partition, whatever happens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given as each_of
from hypothesis import settings
from hypothesis import strategies as st

from carpool.kafka.fencing import FATAL_DEATHS, QUIET_US
from indexer.service import TEXTS_MAX
from schemas.document import DocumentVectors
from schemas.record import header
from schemas.topics import VECTORS
from tests.indexer.corpus_rig import MODEL, TOPIC_ID, Corpus, Gate, given, key_in, rows_of

A, B = key_in(0, "a"), key_in(1, "b")
OLD_MIN = 31


@pytest.fixture(params=[True, False], ids=["exactly_once", "at_least_once"])
def corpus(request: pytest.FixtureRequest) -> Iterator[Corpus]:
    made = Corpus(is_exact=request.param)
    yield made
    made.close()


def shown(found: Sequence[tuple[bytes | None, DocumentVectors]]) -> list[tuple[int, str]]:
    """Offset and outcome of each record."""
    return [
        (each.offset, each.refused or ("deleted" if each.deleted else each.passages[0].text))
        for _, each in found
    ]


def count(corpus: Corpus, metric: str, **labels: str) -> float:
    return corpus.metrics.registry.get_sample_value(f"carpool_{metric}_total", labels) or 0.0


def test_a_text_becomes_passages_with_the_vectors_of_the_model(corpus: Corpus) -> None:
    text = "# Tower\n\nIt was built in 1889.\n\n## Height\n\n" + "It is 330 m high. " * 5
    corpus.put(A, {"title": "Paris", "text": text, "metadata": {"url": "u"}})
    corpus.settle()
    ((key, found),) = corpus.vectors(0)
    assert key == A.encode()
    assert (found.offset, found.topic, found.is_behind) == (0, TOPIC_ID, False)
    assert (found.title, found.metadata) == ("Paris", {"url": "u"})
    assert [each.title for each in found.passages] == ["Paris > Tower", "Paris > Tower > Height"]
    assert all(text[each.start : each.end] == each.text for each in found.passages)
    wanted = MODEL.encode([f"{each.title}. {each.text}" for each in found.passages])
    np.testing.assert_allclose(rows_of(found), wanted, atol=1e-3)
    assert found.embedding_model == MODEL.fingerprint


def test_given_vectors_are_normalised_and_others_are_embedded(corpus: Corpus) -> None:
    vector = np.arange(16, dtype=np.float32)
    corpus.put(A, {"title": "T", "passages": [given("one", 9 * vector), {"text": "two"}]})
    corpus.settle()
    ((_, found),) = corpus.vectors(0)
    assert [each.text for each in found.passages] == ["one", "two"]
    assert [each.title for each in found.passages] == [None, None]
    wanted = [vector / np.linalg.norm(vector), MODEL.encode(["T. two"])[0]]
    np.testing.assert_allclose(rows_of(found), wanted, atol=1e-3)
    assert count(corpus, "passages_indexed", vectors="given") == 1


@pytest.mark.parametrize(
    ("passage", "why"),
    [
        (given("x", np.full(16, np.nan)), "vector of passage 1 has a number that is not finite"),
        (given("x", np.zeros(16)), "vector of passage 1 is zero"),
        (given("x", np.ones(15)), "vector of passage 1 has 60 bytes; 16 numbers"),
        (given("x", np.ones(16), embedding_model="other"), "of the model other, and the corpus is"),
        ({"text": "y" * 1_001}, "title and text of passage 1 have 1001 bytes"),
    ],
)
def test_one_bad_passage_refuses_its_document_and_says_which(
    passage: dict[str, object], why: str
) -> None:
    corpus = Corpus()
    corpus.put(A, {"passages": [{"text": "good"}, passage]})
    corpus.put(A, {"passages": [{"text": "next"}]})
    corpus.settle()
    (_, refused), (_, following) = corpus.vectors(0)
    assert why in (refused.refused or "") and not refused.passages
    assert following.passages[0].text == "next"
    (letter,) = corpus.letters()
    assert why.encode() in (header(letter.headers, "rag.errors.exception.message") or b"")
    corpus.close()


def test_a_document_of_too_many_passages_or_bytes_is_refused_with_what_to_do() -> None:
    corpus = Corpus()
    corpus.put(A, "\n\n".join(f"Paragraph {number:90}" for number in range(600)))
    # Each has fewer bytes than a document may have, and their record has more than its topic takes.
    corpus.put(B, {"metadata": {}, "passages": [{"text": "\x01" * 1_000}] * 400})
    corpus.settle()
    assert "at most 512: publish it in parts" in str(corpus.vectors(0))
    assert "publish it in parts" in str(corpus.vectors(1))
    assert len(corpus.letters()) == 2
    corpus.close()


def test_a_record_in_a_partition_that_is_not_its_keys_hides_nothing(corpus: Corpus) -> None:
    corpus.put(A, "good")
    corpus.put(A, "stray", partition=1)
    corpus.settle()
    assert shown(corpus.vectors(0)) == [(0, "good")]
    ((key, stray),) = corpus.vectors(1)
    assert key == b"\0" + A.encode()
    assert "belongs in partition 0 of 2, and it is in 1" in (stray.refused or "")
    (letter,) = corpus.letters()
    assert (letter.key, letter.value) == (A.encode(), b"stray")


def test_order_holds_when_the_middle_is_refused_fails_once_or_always(corpus: Corpus) -> None:
    failures = {"flaky": 1, "broken": 99}

    def fail(texts: Sequence[str]) -> None:
        for name in failures:
            if failures[name] and any(name in text for text in texts):
                failures[name] -= 1 if len(texts) == 1 else 0
                raise ValueError(name)

    corpus.embedder.hook = fail
    for value in ("one", "{", "flaky", None, "broken", "last"):
        corpus.put(A, value)
    corpus.put(B, "other")
    corpus.until(lambda: len(corpus.vectors(0)) == 6, pause_us=300_000)
    corpus.settle()
    found = shown(corpus.vectors(0))
    assert [offset for offset, _ in found] == list(range(6))
    assert [text for _, text in found][::2] == ["one", "flaky", found[4][1]]
    assert found[1][1].startswith("not_json") and found[3][1] == "deleted"
    assert found[4][1].startswith("processing_failed") and "ValueError" in found[4][1]
    assert found[5][1] == "last"
    assert [letter.value for letter in corpus.letters()] == [b"{", b"broken"]
    assert shown(corpus.vectors(1)) == [(0, "other")]


def test_a_document_of_which_processes_die_ends_refused_in_its_place() -> None:
    corpus = Corpus()
    gate = Gate(corpus, only="deadly")
    for value in ("one", "deadly", "three"):
        corpus.put(A, value)
    while len(corpus.vectors(0)) < 3:
        corpus.step(QUIET_US // 10)
        if gate.is_held.is_set():
            gate.is_held.clear()
            corpus.kill()
    gate.opened.set()
    assert corpus.lives == 1 + FATAL_DEATHS
    found = shown(corpus.vectors(0))
    assert [offset for offset, _ in found] == [0, 1, 2]
    assert "died twice while it had this record alone" in found[1][1]
    assert [letter.value for letter in corpus.letters()] == [b"deadly"]
    corpus.close()


def test_a_large_document_holds_up_others_for_a_pass(corpus: Corpus) -> None:
    gate = Gate(corpus)
    corpus.put(A, {"passages": [{"text": f"large {n}"} for n in range(400)]})
    corpus.until(gate.is_held.is_set)
    corpus.put(B, "small")
    corpus.until(lambda: len(corpus.loop.in_flight.units) == 2)
    gate.opened.set()
    corpus.settle()
    assert max(map(len, corpus.embedder.passes)) == TEXTS_MAX
    (small,) = (nth for nth, texts in enumerate(corpus.embedder.passes) if "small" in texts)
    assert small == 1
    assert len(corpus.embedder.passes) == -(-401 // TEXTS_MAX)


def test_a_text_that_did_not_change_is_not_embedded_again(corpus: Corpus) -> None:
    passages = [{"text": f"passage {n}"} for n in range(10)]
    corpus.put(A, {"title": "T", "passages": passages})
    corpus.settle()
    corpus.put(A, {"title": "T", "passages": [*passages[:-1], {"text": "changed"}]})
    corpus.settle()
    assert [len(texts) for texts in corpus.embedder.passes] == [10, 1]
    assert count(corpus, "passages_indexed", vectors="known") == 9
    corpus.put(A, {"title": "Another", "passages": passages})
    corpus.settle()
    assert len(corpus.embedder.passes[-1]) == 10


def test_only_documents_before_the_end_of_an_old_log_are_behind(corpus: Corpus) -> None:
    for number, value in enumerate(("one", "{", None, "four")):
        corpus.put(A, value, age_min=OLD_MIN + 9 - number)
    corpus.put(B, "{", age_min=OLD_MIN)
    corpus.settle()
    assert [each.is_behind for _, each in corpus.vectors(0)] == [True, True, True, False]
    assert [each.is_behind for _, each in corpus.vectors(1)] == [False]
    corpus.put(A, "young", age_min=29)
    corpus.put(A, "last")
    corpus.settle()
    assert [each.is_behind for _, each in corpus.vectors(0)][4:] == [False, False]


def test_the_last_record_is_not_behind_though_other_partitions_have_more() -> None:
    corpus = Corpus()
    gate = Gate(corpus, only="slow")
    corpus.put(A, "alone", age_min=OLD_MIN)
    for _ in range(3):
        corpus.put(B, "slow", age_min=OLD_MIN)
    corpus.until(lambda: bool(corpus.vectors(0)) or gate.is_held.is_set())
    gate.opened.set()
    corpus.settle()
    assert [each.is_behind for _, each in corpus.vectors(0)] == [False]
    assert [each.is_behind for _, each in corpus.vectors(1)] == [True, True, False]
    corpus.close()


def test_documents_whose_positions_were_lost_are_read_again_and_not_written_again() -> None:
    corpus = Corpus()
    for value in ("one", "{", "three"):
        corpus.put(A, value)
    corpus.settle()
    before = corpus.all_vectors()
    corpus.consumer.crash()
    corpus.stage.close()
    del corpus.broker.groups["carpool-indexer"]
    corpus.start()
    corpus.put(A, "four")
    corpus.settle()
    assert corpus.all_vectors()[: len(before)] == before
    assert shown(corpus.vectors(0))[3:] == [(3, "four")]
    assert corpus.embedder.passes[-1] == ["four"]
    assert count(corpus, "documents_indexed", outcome="repeated") == 3
    assert len(corpus.letters()) == 1
    corpus.close()


def test_the_offsets_of_a_topic_that_was_made_again_begin_anew() -> None:
    corpus = Corpus()
    for value in ("one", "two"):
        corpus.put(A, value)
    corpus.settle()
    corpus.kill()
    corpus.logs.id = "documents-2"
    corpus.put(A, "three")
    corpus.settle()
    assert [each.topic for _, each in corpus.vectors(0)] == [TOPIC_ID, TOPIC_ID, "documents-2"]
    corpus.close()


def test_brokers_that_do_not_answer_are_asked_again_and_readiness_says_so() -> None:
    corpus = Corpus()
    corpus.logs.is_down = True
    corpus.put(A, "one")
    corpus.until(lambda: any("no broker answers" in each for each in corpus.stage.not_ready()))
    corpus.logs.is_down = False
    corpus.settle()
    assert shown(corpus.vectors(0)) == [(0, "one")]
    corpus.close()


def away(corpus: Corpus, *, minutes: int) -> None:
    """Ends the indexer, and begins another one later."""
    corpus.consumer.crash()
    corpus.stage.close()
    corpus.clock.sleep(minutes * 60_000_000)
    corpus.start()


def keys_in(partition: int, count: int) -> list[str]:
    return [key_in(partition, f"key{number}") for number in range(count)]


def test_after_too_long_an_absence_what_the_documents_have_forgotten_is_deleted() -> None:
    corpus = Corpus()
    gone, kept, refused, deleted = keys_in(0, 4)
    for key, value in ((gone, "x"), (kept, "y"), (refused, "{"), (deleted, "z"), (deleted, None)):
        corpus.put(key, value)
    corpus.put(B, "other partition")
    corpus.settle()
    corpus.put(gone, None)
    corpus.compact(0, 2, 3, 4, 5)  # the brokers have removed the null records, too
    corpus.put(kept, "y again")
    away(corpus, minutes=2)
    corpus.settle()
    (key, found), (_, last) = corpus.vectors(0)[5:]
    assert (key, found.offset, found.deleted, found.is_behind) == (gone.encode(), 4, True, True)
    assert (last.offset, last.is_behind) == (6, False)
    assert len(corpus.vectors(1)) == 1
    corpus.put(kept, "and again")
    away(corpus, minutes=2)
    corpus.settle()
    assert shown(corpus.vectors(0))[7:] == [(7, "and again")], "nothing is deleted twice"
    corpus.close()


@pytest.mark.parametrize(
    "reason", ["the vectors are old", "documents wait", "the log begins later"]
)
def test_logs_are_compared_where_deletes_may_be_lost_and_only_there(reason: str) -> None:
    corpus = Corpus()
    corpus.put(A, "one")
    corpus.settle()
    away(corpus, minutes=2 if reason == "the vectors are old" else 0)
    assert not corpus.logs.looks[VECTORS.name], "without a document nothing is compared"
    if reason == "the log begins later":
        corpus.logs.begins[0] = 2
    corpus.put(A, "two", age_min=2 if reason == "documents wait" else 0)
    corpus.put(A, "three")
    corpus.put(B, "x", age_min=2)
    corpus.settle()
    assert corpus.logs.looks[VECTORS.name] == 1, "once, and not where there are no vectors"
    assert [each.offset for _, each in corpus.vectors(0)] == [0, 1, 2]
    corpus.close()
    again = Corpus()
    again.put(A, "one")
    again.settle()
    again.kill()
    again.put(A, "two")
    again.settle()
    assert not again.logs.looks[VECTORS.name]
    again.close()


VALUES = st.sampled_from(["text", "given", "many", None, "{", "fails once", "fails"])


class Failing:
    """A hook of the embedder: a text `fails`, or `fails once`, alone and with others."""

    def __init__(self) -> None:
        self.failed: set[str] = set()

    def __call__(self, texts: Sequence[str]) -> None:
        for text in texts:
            if text.startswith("fails") and text not in self.failed:
                if len(texts) == 1 and text.startswith("fails once"):
                    self.failed.add(text)
                raise ValueError(text)


@settings(max_examples=200)
@each_of(
    values=st.lists(st.tuples(st.integers(0, 1), VALUES), max_size=25),
    kills=st.lists(st.integers(0, 40), max_size=2),
    expels=st.lists(st.integers(0, 40), max_size=2),
    is_exact=st.booleans(),
)
def test_any_log_of_documents_has_one_record_for_each_in_its_order(
    values: list[tuple[int, str | None]], kills: list[int], expels: list[int], is_exact: bool
) -> None:
    corpus = Corpus(is_exact=is_exact)
    corpus.embedder.hook = Failing()
    wanted: list[list[tuple[bool, bool]]] = [[], []]  # deleted, refused
    for number, (partition, value) in enumerate(values):
        body: object = value if value in (None, "{") else f"{value} {number}"
        if value == "given":
            body = {"passages": [given("one", np.ones(16))]}
        elif value == "many":
            body = {"passages": [{"text": f"{number} {n}"} for n in range(70)]}
        corpus.put((A, B)[partition], body)
        wanted[partition].append((value is None, value in ("{", "fails")))
    for step in range(41):
        if step in kills:
            corpus.kill()
        if step in expels:
            corpus.broker.expel("carpool-indexer", corpus.consumer)
        corpus.step(400_000)
    corpus.until(
        lambda: [len(corpus.vectors(n)) >= len(wanted[n]) for n in (0, 1)] == [True, True],
        pause_us=400_000,
    )
    corpus.settle()
    for partition in (0, 1):
        found = [each for _, each in corpus.vectors(partition)]
        assert [each.offset for each in found] == list(range(len(wanted[partition])))
        ends = [(each.deleted, each.refused is not None) for each in found]
        assert ends == wanted[partition]
    refused = sum(is_refused for ends in wanted for _, is_refused in ends)
    assert len(corpus.letters()) == refused if is_exact else len(corpus.letters()) >= refused
    corpus.close()

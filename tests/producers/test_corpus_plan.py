"""A put makes the log what the folder says, and sends nothing twice."""

from __future__ import annotations

import io
import os
import random
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool.errors import ConfigError
from carpool.kafka.records import Message
from producers.corpus.files import FoundDocument, Root
from producers.corpus.log import names_of, read_known
from producers.corpus.plan import PutPlan
from schemas.document import Document, DocumentKey, DocumentPassage
from schemas.document_codec import decode_document
from schemas.topics import DOCUMENTS
from tests.records import a_source

OWNER = "docs"
NAMES = st.sampled_from(["a.md", "b.txt", "c/a.md", "c/d.md"])
TEXTS = st.sampled_from(["", " ", "# One\n\nx", "# Two\n\nx", "plain"])
STEPS = st.one_of(
    st.tuples(st.just("write"), NAMES, TEXTS),
    st.tuples(st.just("touch"), NAMES, st.none()),
    st.tuples(st.just("remove"), NAMES, st.none()),
    st.tuples(st.just("rename"), NAMES, NAMES),
    st.tuples(st.just("put"), st.booleans(), st.none()),
)


class Log:
    """`rag.documents.v1` in memory, with a document of another owner."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.put(PutPlan("other", {}, lambda: 0), [FoundDocument("x", "a.md", Document(text="o"))])

    def put(
        self, plan: PutPlan, found: Root | list[FoundDocument], *, deletes: bool = False
    ) -> dict[str, list[str]]:
        """Appends what a put sends; returns the ids by how they end."""
        ends: dict[str, list[str]] = {"sent": [], "unchanged": [], "deleted": [], "refused": []}
        for change in plan.changes(found, deletes=deletes):
            ends[change.end].append(change.id)
            if (record := change.record) is not None:
                self.messages.append(
                    Message(
                        source=a_source(len(self.messages), DOCUMENTS.name),
                        key=record.query_id.encode(),
                        value=record.value,
                        headers=record.headers,
                        received_us=0,
                    )
                )
        return ends

    def plan(self) -> PutPlan:
        return PutPlan(OWNER, read_known(self.messages, OWNER), lambda: 0)

    def texts(self, owner: str = OWNER) -> dict[str, str | None]:
        """The text of the newest revision of each document."""
        found = {}
        for each in self.messages:
            key, document = decode_document(each.key, each.value, each.headers)
            if key.owner == owner:
                found[key.id] = document.text if document else None
        return {id: text for id, text in found.items() if text is not None}


def change(folder: Path, step: str, name: str, more: str | None) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    if step == "write":
        path.write_text(more or "")
    elif path.exists():
        if step == "touch":
            os.utime(path, (random.randrange(2**31),) * 2)
        elif step == "remove":
            path.unlink()
        else:
            (folder / str(more)).parent.mkdir(exist_ok=True)
            path.rename(folder / str(more))


@settings(max_examples=100, deadline=None)
@given(st.lists(STEPS, max_size=30))
def test_the_log_is_what_the_folder_says_and_nothing_is_sent_twice(
    steps: list[tuple[str, str | bool, str | None]],
) -> None:
    log, known = Log(), dict[str, str]()  # what the log must have
    with TemporaryDirectory() as name:
        folder = Path(name)
        for step, first, more in [*steps, ("put", True, None)]:
            if isinstance(first, str):
                change(folder, step, first, more)
                continue
            files = {
                path.relative_to(folder).as_posix(): path.read_text()
                for path in folder.rglob("*.*")
                if path.is_file()
            }
            good = {id: text for id, text in files.items() if text.strip()}
            gone = known.keys() - files.keys() if first else set()
            if first and not files and known:
                with pytest.raises(ConfigError, match=rf"would remove all {len(known)} of docs"):
                    log.put(log.plan(), Root(name, io.BytesIO()), deletes=True)
                continue
            ends = log.put(log.plan(), Root(name, io.BytesIO()), deletes=first)
            assert set(ends["sent"]) == {id for id in good if good[id] != known.get(id)}
            assert set(ends["unchanged"]) == good.keys() - set(ends["sent"])
            assert (set(ends["deleted"]), set(ends["refused"])) == (gone, files.keys() - good)
            known = {id: text for id, text in (known | good).items() if id not in gone}
            assert log.texts() == known
    assert log.texts("other") == {"a.md": "o"}


def test_each_line_without_an_id_says_what_is_wrong_with_it() -> None:
    found = [FoundDocument("1", "", Document(text="x")), *(FoundDocument(n, why=n) for n in "23")]
    changes = PutPlan(OWNER, {}, lambda: 0).changes(found, deletes=False)
    assert [each.why for each in changes][1:] == ["2", "3"]


def test_every_field_but_the_time_of_a_change_counts() -> None:
    first = Document(title="t", text="x", metadata={"modified": "1", "n": 1})
    same = Document(title="t", text="x", metadata={"n": 1, "modified": "2"})
    others = [
        Document(title="u", text="x", metadata={"n": 1}),
        Document(title="t", text="y", metadata={"n": 1}),
        Document(title="t", text="x", metadata={"n": 2}),
        Document(title="t", passages=(DocumentPassage(text="x"),), metadata={"n": 1}),
    ]
    log = Log()
    sends = [
        log.put(log.plan(), [FoundDocument("x", "a", each)])["sent"]
        for each in (first, same, *others, others[-1])
    ]
    assert sends == [["a"], [], *[["a"]] * 4, []]


def test_what_was_refused_or_cannot_be_read_is_not_deleted() -> None:
    log, good = Log(), Document(text="x")
    log.put(log.plan(), [FoundDocument(id, id, good) for id in "abc"])
    plan = log.plan()
    unread = [FoundDocument("1", "a", why="no UTF-8"), FoundDocument("2", why="no id")]
    ends = log.put(plan, unread, deletes=True)
    assert (ends["deleted"], ends["refused"]) == ([], ["a", ""])
    assert plan.kept == "nothing was deleted, because 2 cannot be read"
    ends = log.put(log.plan(), [unread[0], FoundDocument("3", "b", good)], deletes=True)
    assert ends == {"sent": [], "unchanged": ["b"], "deleted": ["c"], "refused": ["a"]}


def test_a_bad_document_and_a_second_one_with_its_id_are_refused() -> None:
    found = [
        FoundDocument("1", "a", Document(text="x")),
        FoundDocument("2", "a", Document(text="y")),
        FoundDocument("3", "d\n", Document(text="z")),
        FoundDocument("4", "e", Document(text="z", passages=(DocumentPassage(text="z"),))),
    ]
    changes = list(Log().plan().changes(found, deletes=False))
    assert [each.end for each in changes] == ["sent", "refused", "refused", "refused"]
    assert "there is another document 'a'" in changes[1].why
    assert "without control characters" in changes[2].why
    assert "either `text` or `passages`" in changes[3].why


def test_a_record_that_cannot_be_read_is_replaced_and_may_be_deleted() -> None:
    log = Log()
    log.messages.append(
        Message(
            source=a_source(9, DOCUMENTS.name),
            key=DocumentKey(OWNER, "a").encode(),
            value=b"{",
            headers=(),
            received_us=0,
        )
    )
    assert log.put(log.plan(), [FoundDocument("1", "a", Document(text="x"))])["sent"] == ["a"]
    log.messages[-1] = log.messages[-2]
    other = [FoundDocument("1", "b", Document(text="x"))]
    assert log.put(log.plan(), other, deletes=True)["deleted"] == ["a"]


def test_texts_count_by_their_size_and_passages_by_their_number() -> None:
    found = [
        FoundDocument("1", "a", Document(text="x" * 99_900)),
        FoundDocument("2", "b", Document(text="x")),
        FoundDocument("3", "c", Document(passages=(DocumentPassage(text="x"),) * 7)),
        FoundDocument("4", "d", Document(passages=(DocumentPassage(text="x" * 80_000),))),
    ]
    changes = Log().plan().changes(found, deletes=False)
    assert [each.passages for each in changes] == [99, 1, 7, 10]


@pytest.mark.parametrize(
    ("name", "owner", "meant"),
    [
        ("a", None, [("", "a")]),
        ("docs/g/a.md", None, [("", "docs/g/a.md"), ("docs", "g/a.md")]),
        ("docs/a.md#3", None, [("", "docs/a.md#3"), ("docs", "a.md#3"), ("", "docs/a.md")]),
        ("g/a.md#3", "docs", [("docs", "g/a.md#3"), ("docs", "g/a.md")]),
        ("/a", None, [("", "/a")]),
    ],
)
def test_a_name_is_an_id_or_what_a_citation_shows(
    name: str, owner: str | None, meant: list[tuple[str, str]]
) -> None:
    assert names_of(name, owner)[: len(meant)] == meant

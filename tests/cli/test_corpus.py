"""`carpool corpus` against brokers and an indexer: put, get, delete, status."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import producers.corpus.put as put_module
from carpool.clock import SystemClock
from carpool.kafka.admin import create_topics
from carpool.kafka.settings import KafkaSettings
from carpool.kafka.topic_reader import read_topic
from cli.console import output
from cli.corpus_shown import SHOWN_MAX, state_table
from producers.corpus.put import AHEAD_MAX
from producers.publish_queries import Publisher, QueryRecord
from producers.settings import ClientSettings
from schemas.codec import encode
from schemas.document import Base, parse_key
from schemas.topics import BASES, DOCUMENTS
from tests.cli.support import Ended, carpool
from tests.producers.document_indexer import REFUSED, DocumentIndexer
from tests.waiting import WAIT_S, wait_until


class Corpus:
    """A folder that no other test has, and its documents at a broker."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.kafka = KafkaSettings(bootstrap=bootstrap)
        create_topics(self.kafka)
        self.owner = f"docs-{uuid.uuid4().hex}"
        self.folder = folder / self.owner
        self.folder.mkdir()

    def write(self, name: str, text: str) -> None:
        (self.folder / name).parent.mkdir(exist_ok=True)
        (self.folder / name).write_text(text)

    def run(self, command: str, stdin: bytes = b"") -> Ended:
        return carpool(f"corpus {command} --bootstrap {self.kafka.bootstrap}", stdin)

    def put(self, options: str = "") -> Ended:
        return self.run(f"put {self.folder} --json {options}")

    def log(self) -> list[tuple[str, bytes | None]]:
        """Id and value of each record of the owner, in the order of the partitions."""
        messages = read_topic(self.kafka, SystemClock(), DOCUMENTS.name, name="test")
        keys = [(parse_key(each.key), each.value) for each in messages]
        return [(key.id, value) for key, value in keys if key.owner == self.owner]


@pytest.fixture
def corpus(embedded_bootstrap: str, tmp_path: Path) -> Corpus:
    return Corpus(embedded_bootstrap, tmp_path)


@pytest.fixture
def indexer(corpus: Corpus) -> Iterator[DocumentIndexer]:
    made = DocumentIndexer(corpus.kafka.bootstrap)
    yield made
    made.close()


@pytest.fixture
def on_each_broker(bootstrap: str, tmp_path: Path) -> Iterator[Corpus]:
    made = DocumentIndexer(bootstrap)
    yield Corpus(bootstrap, tmp_path)
    made.close()


def counts(ended: Ended) -> tuple[int, ...]:
    return tuple(ended.json[end] for end in ("sent", "unchanged", "deleted", "refused"))


def test_a_folder_is_put_changed_and_deleted(on_each_broker: Corpus) -> None:
    corpus = on_each_broker
    for name in ("a.md", "b/c.txt", "d.md"):
        corpus.write(name, f"# Title of {name}\n\ntext")
    first = corpus.put()
    assert (first.code, counts(first), first.json["not_indexed"]) == (0, (3, 0, 0, 0), 0)
    assert first.json["owner"] == corpus.owner
    corpus.write("a.md", "# A\n\nchanged")
    (corpus.folder / "d.md").unlink()
    assert counts(corpus.put()) == (1, 2 - 1, 0, 0)
    assert counts(corpus.put("--delete")) == (0, 2, 1, 0)
    assert counts(corpus.put("--delete")) == (0, 2, 0, 0)
    assert [id for id, _ in corpus.log()].count("a.md") == 2
    assert dict(corpus.log()).keys() == {"a.md", "b/c.txt", "d.md"}
    assert dict(corpus.log())["d.md"] is None
    shown = corpus.run(f"get {corpus.owner}/a.md#2")
    assert shown.code == 0
    assert "indexer" in shown.stdout and "has it" in shown.stdout
    assert "#1 A" in shown.stdout and "changed" in shown.stdout
    got = corpus.run(f"get a.md --owner {corpus.owner} --json").json
    assert (got["title"], got["metadata"]["path"]) == ("A", "a.md")
    assert [each["text"] for each in got["passages"]] == ["# A", "changed"]
    gone = corpus.run(f"get d.md --owner {corpus.owner} --json").json
    assert (gone["deleted"], gone["indexer"]) == (True, "has it")
    deleted = corpus.run(f"delete {corpus.owner}/a.md --json").json
    assert dict(corpus.log())["a.md"] is None and deleted["id"] == "a.md"
    again = corpus.run(f"delete {corpus.owner}/a.md {corpus.owner}/b/c.txt")
    assert again.code == 2 and "there is no document" in again.stderr
    assert dict(corpus.log())["b/c.txt"] is not None, "nothing is deleted where one is not there"


def test_what_is_refused_is_named_and_the_rest_is_put(
    corpus: Corpus, indexer: DocumentIndexer
) -> None:
    for name, text in (("a.md", "good"), ("b.md", REFUSED), ("c.md", ""), ("\x1b[31m.md", "")):
        corpus.write(name, text)
    ended = corpus.put()
    assert (ended.code, counts(ended)) == (1, (2, 0, 0, 3))
    assert f"b.md: the indexer refuses it: unfit: {REFUSED}" in ended.stderr
    assert "c.md: it is empty" in ended.stderr and "\x1b" not in ended.stderr + ended.stdout
    assert {each["id"] for each in ended.json["refusals"]} == {"b.md", "c.md", "\x1b[31m.md"}
    got = corpus.run(f"get {corpus.owner}/b.md --json").json
    assert (got["indexer"], got["refused"]) == ("refuses it", f"unfit: {REFUSED}")
    state = corpus.run("status --json").json
    assert REFUSED in state["refusals"][json.dumps([corpus.owner, "b.md"], separators=(",", ":"))]
    corpus.write("b.md", "good now")
    assert corpus.put().json["sent"] == 1
    assert corpus.owner not in json.dumps(corpus.run("status --json").json["refusals"])


def test_lines_of_standard_input_are_documents(corpus: Corpus, indexer: DocumentIndexer) -> None:
    lines = b'{"_id": "x", "text": "one"}\n{"id": "y"}\n{}\n'
    ended = corpus.run(f"put - --owner {corpus.owner} --json", lines)
    assert (ended.code, counts(ended)) == (1, (1, 0, 0, 2))
    assert [each["at"] for each in ended.json["refusals"]] == ["line 2", "line 3"]
    unsure = corpus.run(f"put - --owner {corpus.owner} --delete --json", b'{}\n{"id": "z"}')
    assert unsure.code == 1 and "nothing was deleted, because line 1" in unsure.stderr
    assert corpus.run(f"put - --owner {corpus.owner} --delete --json", b"").code == 2
    assert dict(corpus.log())["x"] is not None
    for options, stdin in (("put - --delete", b"{}"), (f"put {corpus.folder}/a.md --delete", b"")):
        corpus.write("a.md", "x")
        needs = corpus.run(options, stdin)
        assert needs.code == 2 and "--delete needs a folder" in needs.stderr


def test_the_state_says_what_waits_and_which_base_is_current(
    corpus: Corpus, indexer: DocumentIndexer
) -> None:
    corpus.write("a.md", "one\ntwo")
    corpus.put()
    before = corpus.run("status --json").json
    assert before["documents"] >= 1 and before["passages"] >= 2
    indexer.close()
    corpus.write("b.md", "three")
    corpus.write("a.md", "four")
    corpus.put("--no-wait")
    base = Base(name="b-1", index_version="v", folder="f", position={}, vectors={}, rows=7)
    value, headers = encode(base, event_id="e", source="test", time_us=0)
    publisher = Publisher(corpus.kafka, ClientSettings())
    record = QueryRecord(topic=BASES.name, query_id="b-1", value=value, headers=headers)
    publisher.send(record, lambda *_: None)
    publisher.close(WAIT_S)
    after = corpus.run("status --json").json
    assert sum(after["waiting"].values()) >= 2 and after["oldest_waiting_s"] >= 0
    assert after["documents"] == before["documents"] + 1
    assert (after["position"], after["indexed"]) == (before["position"], before["indexed"])
    assert (after["base"]["name"], after["base"]["rows"]) == ("b-1", 7)
    assert corpus.run(f"get {corpus.owner}/a.md --json").json["indexer"] == "waits"
    shown = corpus.run("status").stdout
    assert "oldest waiting s" in shown and "base name" in shown


def interrupted(when: Callable[[], bool]) -> threading.Thread:
    """Sends Ctrl-C to this process as soon as `when` holds."""

    def wait() -> None:
        wait_until(when)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_a_put_stays_near_the_indexer_ends_at_ctrl_c_and_goes_on(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(put_module, "SILENT_S", 0.5)
    file, count = corpus.folder / "p.jsonl", AHEAD_MAX + 500
    file.write_text("".join(f'{{"id": "{n}", "text": "t {n}"}}\n' for n in range(count)))
    began_s = time.monotonic()
    thread = interrupted(lambda: time.monotonic() - began_s > 3)
    stopped = corpus.put("--no-wait")
    thread.join()
    assert (stopped.code, stopped.json["ended"]) == (130, "stopped")
    assert (stopped.json["sent"], stopped.json["not_indexed"]) == (AHEAD_MAX, AHEAD_MAX)
    assert "start an indexer" in stopped.stderr
    made = DocumentIndexer(corpus.kafka.bootstrap)
    try:
        ended = corpus.put("--delete")
    finally:
        made.close()
    assert (ended.code, counts(ended)) == (0, (count - AHEAD_MAX, AHEAD_MAX, 0, 0))
    assert len(corpus.log()) == count


def test_ctrl_c_deletes_nothing_that_was_not_read(
    corpus: Corpus, indexer: DocumentIndexer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        corpus.write(f"{number}.md", "x")
    corpus.put()
    stop = put_module.CorpusPut.stop
    monkeypatch.setattr(
        put_module.CorpusPut, "_take", lambda put, change: stop(put)
    )  # Ctrl-C at the first document
    stopped = corpus.put("--delete")
    assert (stopped.code, len(corpus.log())) == (130, 5)


def test_a_put_without_a_broker_or_a_topic_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("x")
    nowhere = "--bootstrap 127.0.0.1:1 --set kafka.request_timeout_ms=1000"
    for command in (f"put {tmp_path}", "get a", "status", "delete a"):
        ended = carpool(f"corpus {command} {nowhere}")
        assert ended.code == 1 and ended.stderr.startswith("error: no broker"), command


def test_the_last_refusals_are_shown_a_line_each(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    refusals = {f"a\n{number}": "why" for number in range(30)} | {"k" * 1_000: "long"}
    output().print(state_table({"documents": 40, "refused": 31, "refusals": refusals}))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + SHOWN_MAX + 1
    assert "a\\n29" in lines[-3] and "long" in lines[-2] and "11 more" in lines[-1]

"""What a folder, a file and standard input have: documents, and what is wrong with the others."""

from __future__ import annotations

import gzip
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from carpool.errors import ConfigError
from producers.corpus.files import LINE_BYTES_MAX, FoundDocument, Root, first_heading
from schemas.document import Document
from schemas.topics import MIB


def root_of(path: Path | str, stdin: bytes = b"") -> Root:
    return Root(str(path), io.BytesIO(stdin))


def documents(root: Root) -> dict[str, Document]:
    return {each.id: each.document for each in root if each.document is not None}


def refused(root: Root) -> list[tuple[str, str, str]]:
    return [(at, id, why) for at, id, document, why in root if document is None]


def test_each_text_of_a_folder_is_a_document(tmp_path: Path) -> None:
    folder = tmp_path / "handbook"
    (folder / "a" / ".git").mkdir(parents=True)
    (folder / "a" / "b.md").write_text("intro\n\n## Travel\n\ntext")
    (folder / "c.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo")
    (folder / "d.MarkDown").write_text("no heading")
    (folder / "a" / ".git" / "x.md").write_text("# hidden")
    (folder / ".e.md").write_text("# hidden")
    (folder / "f.pdf").write_bytes(b"%PDF")
    (folder / "g.html").write_text("<p>")
    os.mkfifo(folder / "h.txt")
    os.utime(folder / "c.txt", (0, 0))
    root = root_of(folder)
    found = documents(root)
    assert (root.owner, root.is_whole) == ("handbook", True)
    assert list(found) == ["c.txt", "d.MarkDown", "a/b.md"]
    assert found["c.txt"] == Document(
        title="c.txt",
        text="one\ntwo",
        metadata={"path": "c.txt", "modified": "1970-01-01T00:00:00Z"},
    )
    assert [found[name].title for name in ("d.MarkDown", "a/b.md")] == ["d.MarkDown", "Travel"]
    assert root.passed_over == {".pdf": 1, ".html": 1, ".txt": 1}


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("# Hello #", "Hello"),
        ("# C#\n", "C#"),
        ("#no\n### [A](b) of `c` **d** ##", "A of c d"),
        ("```sh\n# a comment\n```\n# yes", "yes"),
        ("~~~\n```\n# no\n~~~\n# yes", "yes"),
        ("---\n# a comment\ntitle: x\n---\n# yes", "yes"),
        ("---\n# yes", "yes"),
        ("# #\n# yes", "yes"),
        ("# " + "x" * 999, "x" * 198),
        ("    # code", ""),
        ("", ""),
    ],
)
def test_the_title_is_the_first_heading(text: str, title: str) -> None:
    assert first_heading(text) == title


@pytest.mark.parametrize("name", ["pages.jsonl", "pages.jsonl.gz", "-"])
def test_each_line_of_json_is_a_document(tmp_path: Path, name: str) -> None:
    lines: list[dict[str, Any]] = [
        {"id": "a", "title": "A", "text": "x", "metadata": {"url": "u"}},
        {"_id": 7, "text": "of BEIR", "metadata": {}},
        {"id": "b", "passages": [{"text": "p", "title": "t"}, {"text": "q"}]},
    ]
    content = "\ufeff" + "\n\n".join(map(json.dumps, lines))
    raw = gzip.compress(content.encode()) if name != "pages.jsonl" else content.encode()
    path = name if name == "-" else tmp_path / name
    if isinstance(path, Path):
        path.write_bytes(raw)
    root = root_of(path, raw)
    found = documents(root)
    assert (root.owner, root.is_whole) == ("" if name == "-" else "pages", True)
    assert list(found) == ["a", "7", "b"]
    assert found["a"] == Document(title="A", text="x", metadata={"url": "u"})
    assert [each.text for each in found["b"].passages] == ["p", "q"]


def test_one_text_is_a_part_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# A")
    monkeypatch.chdir(tmp_path / "docs")
    root = root_of("a.md")
    assert (root.owner, root.is_whole, list(documents(root))) == ("docs", False, ["a.md"])
    assert root_of(".").owner == "docs"
    (tmp_path / "lines.jsonl").write_text('{"id": "a", "text": "x"}')
    Path("b.md").symlink_to("a.md")
    Path("latest.JSONL").symlink_to(tmp_path / "lines.jsonl")
    assert [root_of(name).owner for name in ("b.md", "latest.JSONL")] == ["docs", "latest"]


@pytest.mark.parametrize(
    ("name", "content", "id", "why"),
    [
        ("a.md", b"", "a.md", "it is empty"),
        ("a.txt", b"caf\xe9", "a.txt", "it is not UTF-8 (byte 3)"),
        ("a.txt", b"x" * (MIB + 1), "a.txt", "1,048,577 bytes; at most 1,048,576"),
        ("a.jsonl", b'{"text": "x"}', "", "it has no `id`"),
        ("a.jsonl", b'{"id": "a", "text": 1}', "", "$.text: Expected `str | null`, got `int`"),
        ("a.jsonl", b"nothing", "", "it is not JSON"),
        ("a.jsonl", b'{"id": "\xff"}', "", "it is not JSON"),
        ("a.jsonl", b'[{"id": "a"}]', "", "one JSON array"),
        ("a.jsonl", b" " * LINE_BYTES_MAX, "", "it has 4,194,304 bytes or more"),
        ("a.jsonl", gzip.compress(b'{"id": "a"}\n' * 99, mtime=0)[:-9], "", "damaged or cut short"),
    ],
)
def test_what_cannot_be_taken_says_why(
    tmp_path: Path, name: str, content: bytes, id: str, why: str
) -> None:
    (tmp_path / name).write_bytes(content)
    at, found, reason = refused(root_of(tmp_path))[0]
    assert at.startswith(str(tmp_path / name)) and found == id
    assert why in reason


def test_a_line_that_is_too_long_is_passed_over_and_the_next_one_is_taken(tmp_path: Path) -> None:
    good = b'{"id": "%d", "text": "x"}\n'
    long = b'{"id": "b", "text": "' + b"x" * (2 * LINE_BYTES_MAX) + b'"}\n'
    (tmp_path / "a.jsonl").write_bytes(good % 1 + long + good % 2)
    root = root_of(tmp_path / "a.jsonl")
    assert list(documents(root)) == ["1", "2"]
    assert [at.rpartition(":")[2] for at, _, _ in refused(root)] == ["2"]


def test_a_file_of_a_year_that_no_calendar_has_is_taken(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("x")
    os.utime(tmp_path / "a.md", (2**34, 2**34))
    assert documents(root_of(tmp_path))["a.md"].metadata is not None


def test_what_cannot_be_read_is_no_absence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.md").write_text("x")
    scandir = os.scandir

    def denied(path: str) -> Any:
        if str(path).endswith("a"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denied)
    good, bad = list(root_of(tmp_path))
    assert good.id == "b/x.md"
    assert bad == FoundDocument(f"{tmp_path}/a", why="it cannot be read: Permission denied")


def test_what_is_not_there_or_of_another_kind_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no file or folder"):
        root_of(tmp_path / "nothing.md")
    (tmp_path / "a.pdf").write_bytes(b"%PDF")
    with pytest.raises(ConfigError, match="Convert it to Markdown"):
        root_of(tmp_path / "a.pdf")

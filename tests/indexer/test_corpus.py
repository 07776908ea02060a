"""Which lines are taken, and what is said of the others."""

import bz2
import gzip
import hashlib
import json
import lzma
import shutil
import subprocess
from pathlib import Path

import pytest

from carpool.disk.documents import Passage
from carpool.errors import ConfigError
from indexer.corpus import METADATA_BYTES_MAX, CorpusReader, bounded_metadata, file_sha256
from indexer.plan.state import LineProblem

GOOD = b'{"id":"a","title":"T","text":"x","metadata":{"k":[1]},"unknown":1}'


def reader_of(path: Path, line_bytes_max: int = 400, **fields: str) -> CorpusReader:
    return CorpusReader(path, passage_bytes_max=60, line_bytes_max=line_bytes_max, fields=fields)


def read(path: Path, line_bytes_max: int = 400) -> list[Passage | LineProblem]:
    return list(reader_of(path, line_bytes_max))


def line(**fields: object) -> bytes:
    return json.dumps(fields).encode()


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (b"{", "not JSON"),
        (b'{"id":"b","text":"x","metadata":{"k":' + b"[" * 300, "not JSON"),
        (b'{"id":"\xff","text":"x"}', "UTF-8"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[1]", "wrong shape: Expected `object`, got `array`"),
        (line(id="b", body="x"), "no `text` among its fields id, body: name it with --text-field"),
        (line(text="x"), "no `id` among its fields text: name it with --id-field"),
        (line(id=True, text="x"), "got `bool` - at `$.id`"),
        (line(id=float("nan"), text="x"), "got `null` - at `$.id`"),
        (line(id="b", text=None), "got `null` - at `$.text`"),
        (line(id="b", text="x", title=5), "at `$.title`"),
        (line(id="b", text="x", metadata="m"), "at `$.metadata`"),
        (line(id="", text="x"), "`id` is empty"),
        (line(id="b\n", text="x"), "control characters"),
        (line(id="b", text=""), "`text` is empty"),
        (b'{"id":"b","text":"\\ud80"}', "JSON"),
        (line(id="b", text="x" * 61), "have 61 bytes; at most 60"),
        (line(id="b", title="t" * 31, text="x" * 30), "have 61 bytes"),
        (line(id="b", text="x", metadata={"long": "y" * 500}), "longer than 400 bytes"),
    ],
)
def test_a_bad_line_is_told_with_its_number_and_the_ones_around_it_are_taken(
    tmp_path: Path, bad: bytes, says: str
) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(GOOD + b"\n\n" + bad + b"\n" + line(id="z", text="last") + b"\n")
    first, problem, last = read(path)
    assert first == Passage("a", "T", "x", {"k": [1]})
    assert isinstance(problem, LineProblem)
    assert problem.line == 3
    assert says in problem.why
    assert last == Passage("z", "", "last")


HALF = "half of a surrogate pair became U+FFFD"
NOT_FINITE = "a number that is not finite became null"


@pytest.mark.parametrize(
    ("odd", "fields", "taken", "note"),
    [
        (line(_id="b", text="x"), {}, Passage("b", "", "x"), "`id` is read from `_id`"),
        (line(id="b", contents="x"), {}, Passage("b", "", "x"), "`text` is read from `contents`"),
        (line(id=7, _id="b", text="x"), {}, Passage("7", "", "x"), None),
        (line(id=7.5, text="x"), {}, Passage("7.5", "", "x"), None),
        (
            line(id="b", text="x", docid=3, body="y", head="z"),
            {"id": "docid", "text": "body", "title": "head"},
            Passage("3", "z", "y"),
            None,
        ),
        (b'{"id":"\\ud83db","text":"x"}', {}, Passage("\ufffdb", "", "x"), HALF),
        (b'{"id":"b","text":"\\ude00 \\ud83d\\ude00"}', {}, Passage("b", "", "\ufffd 😀"), HALF),
        (
            b'{"id":"b","text":"x","metadata":{"a":NaN,"b":[-Infinity,1e400],"c":1.5}}',
            {},
            Passage("b", "", "x", {"a": None, "b": [None, None], "c": 1.5}),
            NOT_FINITE,
        ),
    ],
)
def test_an_odd_line_is_taken_and_what_was_made_of_it_is_counted(
    tmp_path: Path, odd: bytes, fields: dict[str, str], taken: Passage, note: str | None
) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(odd + b"\n")
    reader = reader_of(path, **fields)
    assert list(reader) == [taken]
    assert dict(reader.notes) == ({note: 1} if note else {})


def test_an_id_may_have_512_bytes_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(line(id="i" * 512, text="x") + b"\n" + line(id="i" * 513, text="x"))
    fits, problem = read(path, line_bytes_max=10_000)
    assert isinstance(fits, Passage)
    assert isinstance(problem, LineProblem)
    assert "513 bytes" in problem.why


def test_gzip_is_known_by_its_content_and_not_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(gzip.compress(GOOD + b"\r\n" + line(id="b", text="y")))
    assert read(path) == [Passage("a", "T", "x", {"k": [1]}), Passage("b", "", "y")]


def test_a_byte_order_mark_blank_lines_and_a_missing_last_newline_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD + b"\n  \n\n" + line(id="b", title=None, text="y"))
    assert read(path) == [Passage("a", "T", "x", {"k": [1]}), Passage("b", "", "y")]


def test_a_line_of_just_the_limit_is_taken_and_a_huge_one_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b"x" * 3_000_000 + b"\n" + GOOD + b"\n" + b"y" * 500)
    too_long, good, last = read(path, line_bytes_max=len(GOOD))
    assert isinstance(too_long, LineProblem)
    assert too_long.line == 1
    assert isinstance(good, Passage)
    assert isinstance(last, LineProblem)
    assert last.line == 3


@pytest.mark.parametrize("cut", [1, 9, 30])
def test_a_gzip_that_is_cut_short_is_an_error_and_not_a_short_corpus(
    tmp_path: Path, cut: int
) -> None:
    path = tmp_path / "corpus.jsonl.gz"
    path.write_bytes(
        gzip.compress(b"".join(line(id=str(i), text="x") + b"\n" for i in range(1000)))[:-cut]
    )
    with pytest.raises(ConfigError, match="damaged or cut short"):
        read(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ((GOOD.decode() + "\n").encode("utf-16"), "is UTF-16.*iconv -f UTF-16 -t UTF-8 "),
        (gzip.compress((GOOD.decode() + "\n").encode("utf-16")), "is UTF-16"),
        (b"[\n" + GOOD + b"\n]", "is one JSON array.*jq -c"),
        (b"\x28\xb5\x2f\xfd\x04", "compressed by zstd.*zstd -dc "),
        (b"PAR1\x15\x04", r"is Parquet.*pandas.read_parquet"),
        (bz2.compress(GOOD), "compressed by bzip2"),
        (lzma.compress(GOOD), "compressed by xz"),
    ],
)
def test_a_foreign_format_is_named_with_the_remedy(
    tmp_path: Path, content: bytes, says: str
) -> None:
    path = tmp_path / "corpus"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=says) as refused:
        read(path)
    command = str(refused.value).rpartition("file: ")[2]
    if shutil.which(command.split()[0]) and "iconv" not in command and len(content) > 10:
        subprocess.run(command, shell=True, check=True)
        assert read(tmp_path / "corpus.jsonl") == [Passage("a", "T", "x", {"k": [1]})]


def test_a_corpus_that_is_missing_or_a_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the corpus"):
        read(tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match="cannot read the corpus"):
        read(tmp_path)
    with pytest.raises(ConfigError, match="cannot read the corpus"):
        file_sha256(tmp_path / "none", "corpus")
    content = b"x" * 3_000_001
    (tmp_path / "f").write_bytes(content)
    assert file_sha256(tmp_path / "f", "corpus") == hashlib.sha256(content).hexdigest()


def test_metadata_is_kept_as_far_as_it_fits_and_the_url_first() -> None:
    long = "y" * (METADATA_BYTES_MAX // 2)
    given = {"a": long, "b": long, "c": 1, "url": "https://a.example/" + "u" * 100}
    kept = bounded_metadata(given)
    assert kept is not None
    assert list(kept) == ["url", "a", "c"], "b does not fit, and c after it does"
    assert len(json.dumps(kept, separators=(",", ":"))) <= METADATA_BYTES_MAX
    assert bounded_metadata({"a": "y" * METADATA_BYTES_MAX}) is None
    fits = {"a": "y" * (METADATA_BYTES_MAX - len('{"a":""}'))}
    assert bounded_metadata(fits) == fits


def test_metadata_that_cannot_be_stored_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'{"id":"a","text":"x","metadata":{"n":' + b"9" * 30 + b',"m":2}}\n')
    (found,) = read(path)
    assert found == Passage("a", "", "x", {"m": 2})
    assert bounded_metadata({}) is None
    assert bounded_metadata(None) is None

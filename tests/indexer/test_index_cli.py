"""`carpool index`, as people and programs call it."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from carpool.disk.extents import segment_name
from carpool.disk.manifest import MANIFEST_NAME, is_newer, read_manifest
from carpool.errors import ConfigError
from cli.index import app
from indexer.write import promote
from tests.cli.support import carpool
from tests.clocks import NOW_US, HandClock
from tests.indexer.helpers import build, write_corpus

runner = CliRunner()


@pytest.fixture
def built(tmp_path: Path) -> Path:
    corpus = write_corpus(tmp_path / "c.jsonl", 120)
    corpus.write_text(corpus.read_text() + "bad\n")
    options = ["--model", "hashing:16", "--nlist", "10", "--json"]
    options += ["--set", "generator.passage_chars_max=28"]
    result = runner.invoke(app, ["build", str(corpus), "--out", str(tmp_path / "index"), *options])
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert (said["bad_lines"], said["problems"][0]["line"]) == (1, 121)
    assert said["index"]["row_count"] == 120
    assert "1 bad line in the corpus (120 good ones)" in result.stderr
    assert "line 121: not JSON" in result.stderr
    assert "120 passages: longer than the 28 characters that a prompt shows" in result.stderr
    return tmp_path / "index"


def test_verify_says_whole_and_exits_0_or_lists_the_damage_and_exits_1(built: Path) -> None:
    result = runner.invoke(app, ["verify", str(built)])
    assert (result.exit_code, "whole: 120 rows in 10 clusters" in result.stdout) == (0, True)
    segment = built / segment_name(0)
    content = bytearray(segment.read_bytes())
    content[9000] ^= 255
    segment.write_bytes(content)
    result = runner.invoke(app, ["verify", str(built)])
    assert result.exit_code == 1
    assert "of cluster 1 at byte 8192 is damaged" in result.stdout
    assert "damaged: 1 problem in" in result.stdout
    assert "index verify" not in result.stdout, "whoever reads this has run it"
    result = runner.invoke(app, ["verify", str(built), "--json"])
    said = json.loads(result.stdout)
    assert (result.exit_code, said["ok"], len(said["problems"])) == (1, False, 1)


def test_stats_speak_to_people_and_to_programs(built: Path) -> None:
    result = runner.invoke(app, ["stats", str(built)])
    assert result.exit_code == 0
    assert "120 of dimension 16" in result.stdout
    said = json.loads(runner.invoke(app, ["stats", str(built), "--json"]).stdout)
    assert (said["nlist"], said["nprobe_default"], said["cluster_rows"]["mean"]) == (10, 10, 12.0)


def test_codes_are_made_for_an_index_without_any_and_it_is_whole(built: Path) -> None:
    corpus = str(built.parent / "c.jsonl")
    options = ["--model", "hashing:16", "--force", "--set", "indexer.code_rows_min=1000"]
    done = runner.invoke(app, ["build", corpus, "--out", str(built), *options])
    assert "none: queries are searched exactly" in done.stdout, done.output
    made = runner.invoke(app, ["codes", str(built)])
    assert made.exit_code == 0, made.output
    assert "whole: 120 rows" in runner.invoke(app, ["verify", str(built)]).stdout
    assert json.loads(runner.invoke(app, ["stats", str(built), "--json"]).stdout)["codes"] == [
        "int4"
    ]


def test_questions_choose_nprobe_and_stats_say_that_it_is_measured(tmp_path: Path) -> None:
    corpus, index = write_corpus(tmp_path / "c.jsonl", 120), str(tmp_path / "i")
    asked = np.random.default_rng(1).standard_normal((150, 16)).astype(np.float32)
    np.save(tmp_path / "asked.npy", asked)
    options = ["--out", index, "--model", "hashing:16", "--nlist", "40"]
    assert runner.invoke(app, ["build", str(corpus), *options]).exit_code == 0
    options = ["--model", "hashing:16", "--questions", str(tmp_path / "asked.npy")]
    assert runner.invoke(app, ["tune", index, *options]).exit_code == 0
    stats = json.loads(runner.invoke(app, ["stats", index, "--json"]).stdout)
    table = read_manifest(tmp_path / "i").recall
    assert table is not None and stats["is_measured"]
    assert stats["nprobe_default"] == table.row_for(0.95).nprobe


def test_options_reach_the_build(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text(
        '{"docid": 1, "contents": "x \\ud800"}\n{"docid": 2, "contents": "y"}\n'
    )

    def build(out: str, *options: str) -> Result:
        command = ["build", str(tmp_path / "c.jsonl"), "--model", "hashing:8", "--json"]
        return runner.invoke(app, [*command, "--out", str(tmp_path / out), *options])

    assert "no `id` among its fields docid, contents" in str(build("a").exception)
    named = ("--id-field", "docid")
    done = build("a", *named, "--nlist", "2", "--vector-dtype", "float16")
    assert "2 passages: `text` is read from `contents`" in done.stderr
    assert "1 passage: half of a surrogate pair became U+FFFD" in done.stderr
    said = json.loads(done.stdout)
    assert said["notes"]["`text` is read from `contents`"] == 2
    index = said["index"]
    assert (index["nlist"], index["dimension"], index["vector_dtype"]) == (2, 8, "float16")
    assert index["codes"] == ["int4"]
    assert isinstance(build("a", *named).exception, ConfigError)
    forced = build("a", *named, "--force", "--set", "indexer.code_rows_min=3")
    assert json.loads(forced.stdout)["index"]["codes"] == []
    assert (
        "none: queries are searched exactly"
        in runner.invoke(app, ["stats", str(tmp_path / "a")]).stdout
    )
    for options, says in (
        (("--set", "indexer.memory_bytes=0"), "memory_bytes"),
        (("--vector-dtype", "float64"), "vector_dtype"),
    ):
        refused = build("b", *named, *options).exception
        assert isinstance(refused, ConfigError) and says in str(refused)
    assert build("b", *named, "--seed", str(2**31)).exit_code == 2


def test_an_empty_index_is_built_without_a_corpus(tmp_path: Path) -> None:
    command = ["build", "--out", str(tmp_path / "i"), "--model", "hashing:8"]
    for wrong in (command, [*command, "--empty", "c.jsonl"], [*command, "--empty", "--nlist", "4"]):
        refusal = str(runner.invoke(app, wrong).exception)
        assert re.search("CORPUS, or --empty|leave out --n", refusal)
    done = runner.invoke(app, [*command, "--empty", "--json", "--vector-dtype", "float16"])
    index = json.loads(done.stdout)["index"]
    assert (index["row_count"], index["dimension"], index["vector_dtype"]) == (0, 8, "float16")
    again = runner.invoke(app, [*command, "--empty", "--force"])
    assert again.exit_code == 0 and "0 of dimension 8" in again.stdout


# ---- an index that is made the newest: a new version, and nothing else


def test_a_promoted_index_is_newer_and_otherwise_as_before(tmp_path: Path) -> None:
    corpus, index = write_corpus(tmp_path / "c.jsonl", 60), tmp_path / "index"
    before = build(corpus, index, nlist=4).manifest
    files = {path: path.read_bytes() for path in index.iterdir() if path.name != MANIFEST_NAME}
    later = [promote(index, HandClock(NOW_US + s * 1_000_000)) for s in (1, 59, 60, 9_000)]
    for older, newer in pairwise([before.index_version, *later]):
        assert is_newer(newer, older) and not is_newer(newer, newer)
    ended = carpool(f"index promote {index}")
    after = read_manifest(index)
    assert ended.code == 0 and after.index_version in ended.stdout.replace("\n", "")
    assert msgspec.structs.replace(after, index_version=before.index_version) == before
    assert {path: path.read_bytes() for path in files} == files
    assert carpool(f"index verify {index}").code == 0

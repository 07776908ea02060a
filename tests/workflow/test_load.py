"""Modules of programs: loaded, or refused with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from carpool.errors import ConfigError
from carpool.workflow.load import load_programs

MODULE = """
from carpool.workflow import Answer, Retrieve, workflow

@workflow("mine", version={version})
def mine(question):
    "Mine alone."
    found = yield Retrieve(question{change})
    return Answer("cited", question=question, passages=found)
"""


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_a_module_adds_programs_and_versions_run_side_by_side(tmp_path: Path) -> None:
    one = written(tmp_path / "one.py", MODULE.format(version=1, change=""))
    two = written(tmp_path / "two.py", MODULE.format(version=2, change=".lower()"))
    programs = load_programs(f"{one}, {two}")
    assert {("mine", 1), ("mine", 2), ("hyde", 1)} <= programs.keys()
    assert programs["mine", 1].digest != programs["mine", 2].digest
    assert programs["mine", 1].summary == "Mine alone."
    comment = written(tmp_path / "c.py", f"# A comment.\n{MODULE.format(version=1, change='')}")
    assert load_programs(comment)["mine", 1].digest == programs["mine", 1].digest


WITH_HELPER = """
from carpool.workflow import Answer, Retrieve, workflow

LIMIT = {limit}

def first(text):
    return text[:LIMIT]

@workflow("mine", version=1)
def mine(question):
    found = yield Retrieve(first(question))
    return Answer("cited", question=question, passages=found)

{more}
"""


def test_a_digest_covers_what_a_program_uses_and_no_other_program_of_its_file(
    tmp_path: Path,
) -> None:
    newer = """
OTHER = 3

@workflow("mine", version=2)
def mine_2(question):
    found = yield Retrieve(question, top_k=OTHER)
    return Answer("cited", question=question, passages=found)
"""

    def digest(**parts: object) -> str:
        text = WITH_HELPER.format(**{"limit": 9, "more": "", **parts})
        return load_programs(written(tmp_path / "mine.py", text))["mine", 1].digest

    before = digest()
    assert digest(more=newer) == before
    assert digest(limit=8) != before
    assert digest(more="LIMIT += 1") != before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import time\n", r"mine\.py, line 1: a workflow may not import 'time'"),
        ("from random import choice\n", "may not import 'random'"),
        ("\nimport os.path\n", r"line 2: a workflow may not import 'os\.path'"),
        ("from . import other\n", "may not import '.'"),
        ("open('x')\n", "may not use open"),
        ("x = 1\n", "has no workflow"),
        ("def broken(:\n", "cannot be loaded: SyntaxError"),
        ("1 / 0\n", "cannot be loaded: ZeroDivisionError"),
        ("exit()\n", "cannot be loaded: SystemExit"),
        ("while True:\n    pass\n", "computed for 5 s without an answer"),
    ],
)
def test_a_module_that_is_not_pure_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_programs(written(tmp_path / "mine.py", text))


def test_a_changed_program_of_the_same_version_is_refused(tmp_path: Path) -> None:
    one = written(tmp_path / "one.py", MODULE.format(version=1, change=""))
    two = written(tmp_path / "two.py", MODULE.format(version=1, change=".lower()"))
    with pytest.raises(ConfigError, match="two programs mine@1; raise the version"):
        load_programs(f"{one},{two}")
    with pytest.raises(ConfigError, match="there is no module 'gone'"):
        load_programs("gone")

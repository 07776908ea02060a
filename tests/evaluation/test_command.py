"""`carpool eval`: files in, tables, JSON and a page out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from schemas.batch import AnswerLine
from tests.cli.support import Ended, carpool
from tests.evaluation.support import TEXT, an_answer, cited, questions, write

ROOT = Path(__file__).parents[2]
GOLD = {"answers": ["1889"], "passages": ["a"]}
HOSTILE = "<script>alert('x')</script><img src=x onerror=alert(1)> \"' & {{ 7 * 7 }} [1]"


def evaluated(folder: Path, *lines: AnswerLine, asked: int = 3, options: str = "") -> Ended:
    asking = questions(folder / "q.jsonl", *[GOLD] * asked)
    given = write(folder / "a.jsonl", lines)
    return carpool(f"eval {asking} --answers {given} {options}")


def test_a_report_has_each_figure_with_its_interval(tmp_path: Path) -> None:
    shown = evaluated(tmp_path, *map(an_answer, (1, 2, 3)))
    assert (shown.code, shown.stderr) == (0, "")
    rows = {line.split()[0]: line for line in shown.stdout.splitlines() if line.strip()}
    assert "1.00 (0.44 to 1.00)" in rows["answer_match"]
    assert re.search(r"status ok +1\.00 \(0\.44 to 1\.00\)", shown.stdout)
    assert re.search(r"total tokens +330", shown.stdout)
    assert re.search(r"total, ms \(p50, p99\) +80\.0, 119\.2", shown.stdout)


def test_json_has_the_figures_and_what_each_line_is_worth(tmp_path: Path) -> None:
    wrong = an_answer(2, answer="In 1898 [1].", citations=(cited("c", 0, supported=False),))
    found = evaluated(tmp_path, an_answer(1), wrong, options="--json").json
    assert found["figures"]["answer_match"]["share"] == 0.5
    assert found["figures"]["citation_precision"]["lines"] == 2
    assert found["missing"] == [3]
    assert [row["values"]["citation_precision"] for row in found["rows"]] == [1.0, 0.0]


def test_of_equal_lines_the_last_counts_and_half_a_line_at_the_end_does_not(
    tmp_path: Path,
) -> None:
    failed = an_answer(1, status="failed", answer=None)
    asking = questions(tmp_path / "q.jsonl", GOLD, {}, GOLD)
    answers = write(tmp_path / "a.jsonl", [failed, an_answer(2), an_answer(1)])
    with answers.open("ab") as file:
        file.write(b'{"line":3,"status":"ok","answer":"in 18')
    found = carpool(f"eval {asking} --answers {answers} --json").json
    assert {name: each["share"] for name, each in found["statuses"].items()} == {"ok": 1.0}
    # the gold of line 3, which has no answer, is in no figure
    match = found["figures"]["answer_match"]
    assert (match["share"], match["lines"]) == (1.0, 1)
    assert found["missing"] == [3]


def test_lines_without_an_answer_are_named(tmp_path: Path) -> None:
    shown = evaluated(tmp_path, an_answer(2), asked=13)
    assert shown.code == 0
    assert "lines without an answer, which no figure counts: 1, 3, 4, 5," in shown.stderr
    assert shown.stderr.rstrip().endswith("11, … (12 in all)")


@pytest.mark.parametrize(
    ("asked", "answers", "why"),
    [
        ('{"text": "q"}\n', '{"line": 1\n{"line": 1, "status": "ok"}\n', "a.jsonl:1: "),
        ('{"text": "q"}\n', '{"line": 1, "status": "great"}\n', "a.jsonl:1: Invalid enum"),
        ('{"text": "q"}\n', "", "a.jsonl has no answer"),
        ('{"text": "q"}\n', '{"line": 2, "status": "ok"}\n', "a.jsonl:1: line 2 of the questions"),
        (
            '\n{"question": "who?"}\n',
            '{"line": 2, "status": "ok", "question": "when?"}\n',
            "is 'who?', and this answers 'when?': name the file that was asked",
        ),
        ('{"text": "q", "answers": "a"}\n', "", "q.jsonl has no question as a JSON line"),
        ('{"text": "q"}\n{"text": "r', '{"line": 2, "status": "ok"}\n', "line 2 of the questions"),
        ('[{"text": "q"}]', "", "q.jsonl is one JSON array"),
    ],
)
def test_bad_files_are_refused_with_file_and_line(
    tmp_path: Path, asked: str, answers: str, why: str
) -> None:
    (tmp_path / "q.jsonl").write_text(asked)
    (tmp_path / "a.jsonl").write_text(answers)
    shown = carpool(f"eval {tmp_path}/q.jsonl --answers {tmp_path}/a.jsonl")
    assert (shown.code, shown.stdout) == (2, "")
    assert why in shown.stderr and "Traceback" not in shown.stderr


def test_questions_with_a_body_and_their_own_id_are_matched_by_line(tmp_path: Path) -> None:
    asking = tmp_path / "q.jsonl"
    body = '{"custom_id": "x", "body": {"messages": []}, "answers": ["1889"], "passages": [7]}'
    asking.write_text(f"\n{body}\n")
    found = [{"id": "7", "score": 1.0}]
    answers = write(tmp_path / "a.jsonl", [an_answer(2, custom_id="x", retrieved=found)])
    figures = carpool(f"eval {asking} --answers {answers} --json").json["figures"]
    assert figures["answer_match"]["share"] == figures["hit_rate_at_1"]["share"] == 1.0


def test_options_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    asking = questions(tmp_path / "q.jsonl", GOLD)
    for options, why in (
        ("--answers nowhere.jsonl", "cannot read nowhere.jsonl"),
        ("--compare a b --html c", "--compare takes two runs"),
    ):
        shown = carpool(f"eval {asking} {options}")
        assert (shown.code, shown.stdout) == (2, "") and why in shown.stderr
    shown = evaluated(tmp_path, an_answer(1), options=f"--html {tmp_path}/none/r.html")
    assert shown.code == 2 and "cannot write" in shown.stderr


def test_a_comparison_shows_the_changed_lines_and_no_others(tmp_path: Path) -> None:
    asking = questions(tmp_path / "q.jsonl", *[GOLD] * 4)
    first = write(tmp_path / "1.jsonl", map(an_answer, (1, 2, 3, 4)))
    moved = [{"id": each, "score": 0.5} for each in "bad"]
    second = [
        an_answer(1),
        an_answer(2, retrieved=moved, citations=(cited("a", 0), cited("b", 1, supported=False))),
        an_answer(3, answer=TEXT.replace("1889", "1898")),
    ]
    shown = carpool(f"eval {asking} --compare {first} {write(tmp_path / '2.jsonl', second)}")
    assert shown.code == 0
    changes = shown.stdout.partition("figure ")[0].splitlines()
    assert [" ".join(line.split()) for line in changes] == [
        "2 question 2?",
        "retrieved -c +d",
        "citations -b +b ?",
        "3 question 3?",
        f"answer {TEXT} -> {TEXT.replace('1889', '1898')}",
        "answer_match 1.00 -> 0.00",
        "f1 0.22 -> 0.00",
    ]
    assert re.search(r"citation_precision +1\.00 +0\.83 +-0\.17 \(", shown.stdout)
    assert "2 of 3 lines differ" in shown.stdout
    assert "lines that are not in both runs, which no figure counts: 4\n" in shown.stderr


class Tags(HTMLParser):
    """The tags of a page, their attributes, and all of its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_shows_hostile_text_as_text(tmp_path: Path) -> None:
    hostile = [{"id": HOSTILE, "score": 0.5}]
    citation = {"n": 1, "doc_id": HOSTILE, "title": HOSTILE, "snippet": HOSTILE, "by": "model"}
    span = {"start": 0, "end": len(HOSTILE)}
    answers = [
        an_answer(
            1,
            answer=HOSTILE,
            question=None,
            retrieved=hostile,
            citations=[citation | {"sentence": span, "quote": span, "url": "javascript:alert(1)"}],
            quotes=[{"n": 1, "doc_id": HOSTILE, "start": 0, "end": 1, "text": HOSTILE}],
            timings_ms={HOSTILE: 1.0},
        ),
        an_answer(2),
    ]
    page = tmp_path / "r.html"
    shown = evaluated(tmp_path, *answers, options=f"--html {page}")
    assert shown.code == 0, shown.stderr
    found = Tags(page.read_text(encoding="utf-8"))
    assert not {"script", "img", "a", "iframe", "link"} & set(found.tags)
    assert found.attributes == {"lang", "charset", "http-equiv", "content", "name", "class", "id"}
    assert found.text.count(HOSTILE) >= 6
    assert "javascript:" not in page.read_text(encoding="utf-8")
    assert found.tags.count("article") == 2
    for text in (
        "gold answer found: 1889",
        "gold passage not found: a",
        "Lines without an answer, which no figure counts: 3",
    ):
        assert text in " ".join(found.text.split())


def test_only_the_page_needs_more_than_the_base_install(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['jinja2'] = None\n")
    asking = questions(tmp_path / "q.jsonl", GOLD)
    answers = write(tmp_path / "a.jsonl", [an_answer(1)])
    command = [sys.executable, "-m", "carpool", "eval", str(asking), "--answers", str(answers)]
    environ = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    for options, code, message in (
        ([], 0, ""),
        (["--html", str(tmp_path / "r.html")], 2, "pip install 'carpool[report]'"),
    ):
        done = subprocess.run([*command, *options], env=environ, capture_output=True, text=True)
        assert done.returncode == code and message in done.stderr, done.stderr

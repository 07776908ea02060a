"""`carpool workflows`, and `carpool ask --workflow`: programs are explained, checked and seen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.answer import PartialAnswer, StepDone
from schemas.query import Query
from schemas.record import Record, Source
from tests.cli.support import carpool
from tests.producers.responder import Responder, answer_to

PROGRAMS = '''
from carpool.workflow import Answer, Generate, Retrieve, workflow

@workflow("checked", version=3, steps_max=5)
def checked(question):
    """Answer, then check.

    The check is a second prompt.
    """
    found = yield Retrieve(question, top_k=2)
    said = yield Generate(prompt="Is {q} answered by {found}?", q=question, found=found)
    if said.text == "no":
        said = yield Generate("no_such_template", question=question)
    return Answer(text=said, passages=found)
'''
COLLECTS = """
from carpool.workflow import Answer, Generate, Retrieve, workflow

@workflow("collects", version=1)
def collects(question):
    found = yield Retrieve(question, top_k=3)
    grade = yield Generate("grade", question=question, passages=found)
    found += yield Retrieve(grade.text, top_k=3)
    yield Generate("grade", question=question, passages=found)
    yield Generate("rewrite", question=question, passages=found)
    return Answer("cited", question=question, passages=found)
"""
GRAPH = {
    "nodes": [{"id": "s", "query": "input"}, {"id": "a", "prompt": "{input} {docs}"}],
    "edges": [{"from": "START", "to": "s"}, {"from": "s", "to": "a"}, {"from": "a", "to": "END"}],
}


@pytest.fixture
def module(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(PROGRAMS)
    return file


def test_the_list_has_the_built_in_programs_and_those_of_a_module(module: Path) -> None:
    listed = carpool(f"workflows --set workflow.modules={module} --json").json
    assert {each["name"]: each["version"] for each in listed}["checked"] == 3
    assert "multistep" in carpool("workflows").stdout


def test_a_program_is_explained_with_its_file_and_its_source(module: Path) -> None:
    shown = carpool(f"workflows show checked@3 --set workflow.modules={module}")
    for part in ("checked@3: Answer, then check.", "second prompt", "5", str(module), "yield"):
        assert part in shown.stdout
    unknown = carpool("workflows show nothing")
    assert (unknown.code, "there are: one_shot@1, hyde@1" in unknown.stderr) == (2, True)


def test_a_check_prints_each_step_and_the_path_that_the_texts_choose(module: Path) -> None:
    ended = carpool(f"workflows check {module} --question Why? --text maybe")
    assert ended.code == 0
    assert [" ".join(line.split()) for line in ended.stdout.splitlines()] == [
        "checked@3",
        "1 search “Why?” -> doc-1, doc-2",
        "2 write “Is {q} answered by {found}?” with q, found -> “maybe”",
        "answer the text “maybe”, 2 passages",
    ]
    other = carpool(f"workflows check {module} --text no --json")
    (checked,) = other.json
    assert (other.code, len(checked["steps"]), checked["answer"]) == (1, 3, None)
    assert "checked@3, step 3: " in checked["error"]
    assert "there is no template 'no_such_template'" in checked["error"]


def test_a_graph_is_checked_too(tmp_path: Path) -> None:
    file = tmp_path / "graph.json"
    file.write_text(json.dumps(GRAPH))
    ended = carpool(f"workflows check {file} --json")
    assert (ended.code, ended.json[0]["answer"]) == (0, "“{input} {docs}” with input, docs")
    file.write_text(json.dumps(GRAPH | {"nodes": GRAPH["nodes"][1:]}))
    bad = carpool(f"workflows check {file}")
    assert (bad.code, bad.stdout) == (2, "")
    assert "node 'START' leads to 's'" in bad.stderr


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("clock.py", "import time", "line 1: a workflow may not import 'time'"),
        ("graph.json", "[1]", "is no graph"),
        ("graph.json", "{", "cannot be read"),
        ("text.txt", "", "no file that ends in .py or .json"),
    ],
)
def test_a_file_that_services_would_refuse_is_refused_in_words(
    tmp_path: Path, name: str, text: str, words: str
) -> None:
    (tmp_path / name).write_text(text)
    ended = carpool(f"workflows check {tmp_path / name}")
    assert (ended.code, ended.stdout) == (2, "")
    assert words in " ".join(ended.stderr.split())


IDS = tuple("abcdefg")
STEPS = (
    StepDone(n=1, kind="generate", text="Who wrote\nit?", ms=820, tokens=4),
    StepDone(n=2, kind="retrieve", text="Who?", ms=50, doc_ids=("d1", "d2"), titles=("Emma", "")),
    StepDone(n=3, kind="retrieve", text="word " * 30, ms=1_234, doc_ids=IDS, titles=IDS),
)


@pytest.fixture
def responder(embedded_bootstrap: str) -> Iterator[Responder]:
    made = Responder(embedded_bootstrap)
    yield made
    made.close()


@pytest.mark.parametrize("told", [0, 1, 3])
def test_steps_are_shown_with_the_answer_and_those_that_were_not_told_after_it(
    responder: Responder, told: int
) -> None:
    def reply(query: Query, source: Source) -> list[Record]:
        pieces = [
            PartialAnswer(query_id=query.query_id, generation_id="s", seq=seq, text="", step=step)
            for seq, step in enumerate(STEPS[:told])
        ]
        return [*pieces, answer_to(query, source, "Jane Austen", steps=STEPS)]

    responder.reply = reply
    ended = carpool(f"ask Who? --workflow hyde --bootstrap {responder.bootstrap}")
    assert responder.seen[-1].workflow == "hyde"
    *short, long = [line.rstrip() for line in ended.stderr.splitlines()]
    assert short == [
        "  1 wrote    “Who wrote it?”  4 tokens  0.82 s",
        "  2 searched “Who?”  found Emma; d2  0.05 s",
    ]
    assert "…”" in long and long.endswith("found a; b; c; d; e; 2 more  1.23 s")
    assert "Jane Austen" in ended.stdout and "searched" not in ended.stdout
    as_json = carpool(f"ask Who? --workflow hyde --json --bootstrap {responder.bootstrap}")
    assert (len(as_json.json["steps"]), as_json.stderr) == (3, "")


def test_a_check_names_the_passages_that_a_prompt_does_not_show(module: Path) -> None:
    module.write_text(COLLECTS)
    narrow = "--set generator.prompt_chars_max=3000"
    ended = carpool(f"workflows check {module} {narrow}")
    lines = ended.stdout.splitlines()
    assert [line.partition("; not in the prompt: ")[2] for line in lines] == [
        *("", "", "", "", "doc-3, doc-6"),
        "doc-1, doc-2, doc-3, doc-4, doc-5, doc-6",
        "doc-3, doc-6",
    ]
    assert "not in" not in carpool(f"workflows check {module}").stdout.splitlines()[-1]


IMPURE = {
    "over_a_set": 'yield [Retrieve(text) for text in {"the river", "the glacier", "the comet"}]',
    "with_an_address": 'yield Generate(prompt="{a}", a=f"{iter(found)}")',
}


@pytest.mark.parametrize("name", IMPURE)
def test_a_check_names_program_and_step_that_another_process_would_not_ask_for(
    tmp_path: Path, name: str
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"""
from carpool.workflow import Answer, Generate, Retrieve, workflow

@workflow("{name}", version=1)
def program(question):
    found = yield Retrieve(question)
    {IMPURE[name]}
    return Answer("cited", question=question, passages=found)
""")
    ended = carpool(f"workflows check {file}")
    assert ended.code == 1
    told = " ".join(ended.stdout.split())
    assert f"{name}@1, step 2: in another process the program asks for another step" in told


def test_a_check_names_program_and_step_that_would_end_its_process(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(PROGRAMS.replace("    if said", "    exit()\n    if said"))
    ended = carpool(f"workflows check {file}")
    assert ended.code == 1
    assert "checked@3, step 3: the program raised SystemExit" in " ".join(ended.stdout.split())

"""Modules of programs: loaded, or refused; a new version, with which open workflows go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from carpool.errors import ConfigError
from carpool.workflow.load import load_programs, load_workflows
from carpool.workflow.process import ModuleProcess
from carpool.workflow.program import Program
from carpool.workflow.settings import WorkflowSettings
from carpool.workflow.steps import Found, Generate, Retrieve, WorkflowError
from carpool.workflow.workflows import Workflows, search_query, with_results
from generator.plan.next_round import with_found
from generator.plan.prompt import Template, fill
from schemas.query import Query
from schemas.workflow import StepResult
from tests.deploy.doc_blocks import program_of_guide
from tests.records import a_query, a_retrieval, some_hits

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


# ---- the guide's way to a new version of a program: workflows that are open go on


NEXT = """

@workflow("compare", version=2, steps_max=8)
def compare(question: str):
    found = Found()
    found += yield Retrieve(question)
    return Answer("cited", question=question, passages=found)
"""


def next_version(text: str) -> str:
    """What the guide says: keep the old function in the file, under another name."""
    kept = text.replace("def compare(", "def compare_1(")
    return kept.replace("import Answer, ", "import Answer, Found, ") + NEXT


def loaded(path: Path, text: str) -> Workflows:
    path.write_text(text)
    return load_workflows(WorkflowSettings(modules=str(path)))


def taken(query: Query, workflows: Workflows) -> Query:
    """The query after its next round, which writes or finds something."""
    asked = workflows.asked(query)
    if isinstance(asked.steps[0], Generate):
        return with_results(query, [StepResult(digest=each, text="x") for each in asked.digests])
    searches = [step for step in asked.steps if isinstance(step, Retrieve)]
    query = search_query(query, searches, now_us=1)
    hits = some_hits(2)
    other_hits = (hits,) * (len(searches) - 1)
    return with_found(a_retrieval(query, hits, other_hits=other_hits), now_us=2).query


def test_open_workflows_go_on_when_the_guides_next_version_is_deployed(tmp_path: Path) -> None:
    guide = program_of_guide()
    before = loaded(tmp_path / "compare.py", guide)
    states = [before.begin(a_query(text="Which is older?", workflow="compare"))]
    for _ in range(3):
        states.append(taken(states[-1], before))
    assert before.asked(states[-1]).answer is not None
    after = loaded(tmp_path / "compare.py", next_version(guide))
    for state in states:
        assert after.asked(state).digests == before.asked(state).digests
    newest = after.begin(a_query(text="Which is older?", workflow="compare")).journal
    assert newest is not None and newest.version == 2


END = "passages=found)\n"
NEWER = """
@workflow("mine", version=2)
def mine_2(question):
    found = yield Retrieve(question, top_k=3)
    return Answer("cited", question=question, passages=found)
"""
CHANGES = {
    "another program": (END, END + NEWER, True),
    "a constant that is changed later": (END, END + "LIMIT += 1\n", False),
    "a comment": ("yield Retrieve", "yield Retrieve", True),
    "another import": ("import Answer,", "import Answer, Found,", True),
    "the order of imports": ("Answer, Retrieve, workflow", "workflow, Retrieve, Answer", True),
    "the text of a step": ("LIMIT = 9", "LIMIT = 8", False),
    "a default": ("top_k=2", "top_k=3", False),
    "a helper": ("text[:LIMIT]", "text[1:LIMIT]", False),
}
MINE = """
from carpool.workflow import Answer, Retrieve, workflow

LIMIT = 9

def first(text):
    return text[:LIMIT]

@workflow("mine", version=1)
def mine(question):
    found = yield Retrieve(first(question), top_k=2)
    return Answer("cited", question=question, passages=found)
"""


@pytest.mark.parametrize("change", CHANGES)
def test_a_digest_changes_with_what_a_program_does_alone(tmp_path: Path, change: str) -> None:
    old, new, is_same = CHANGES[change]
    path = tmp_path / "mine.py"
    before, *_ = programs_of(path, MINE)
    after, *_ = programs_of(path, MINE.replace(old, new) + "\n# A comment.\n")
    assert (before.digest == after.digest) == is_same


def programs_of(path: Path, text: str) -> tuple[Program, ...]:
    path.write_text(text)
    process = ModuleProcess(str(path))
    programs = process.start()
    process.close()
    return programs


OVER_A_SET = """
from carpool.workflow import Answer, Retrieve, workflow

@workflow("over_a_set", version=1)
def over_a_set(question):
    a, b = yield [Retrieve(text) for text in {"the river", "the glacier"}]
    return Answer("cited", question=question, passages=a)
"""


def test_searches_in_the_order_of_a_set_never_get_the_passages_of_one_another(
    tmp_path: Path,
) -> None:
    (tmp_path / "over.py").write_text(OVER_A_SET)
    kinds = set()
    for seed in range(8):  # some of these processes have another order
        process = ModuleProcess(str(tmp_path / "over.py"), hash_seed=seed)
        (program,) = process.start()
        workflows = Workflows(programs={("over_a_set", 1): program}, steps_max=9, tokens_max=9)
        if seed == 0:
            begun = workflows.begin(a_query(text="why?", workflow="over_a_set"))
            found = taken(begun, workflows)
            assert found.journal is not None
            (round,) = found.journal.rounds
            assert [Retrieve(each.text).digest() for each in round] == [one.digest for one in round]
        try:
            kinds.add(str(workflows.asked(found).answer and "answered"))
        except WorkflowError as error:
            kinds.add(error.kind)
        process.close()
    assert kinds == {"answered", "workflow_changed"}


def test_passages_in_a_text_are_what_a_prompt_shows() -> None:
    hits = some_hits(2)
    template = Template(system="", user="{{docs}}")
    limits = {"passages_max": 2, "passage_chars_max": 600, "prompt_chars_max": 10_000}
    assert str(Found(hits)) == fill(template, {"docs": hits}, **limits).user

"""The built-in programs: what each searches, and which results each of its prompts shows."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

import pytest

import carpool.testing.run_program
import carpool.workflow
from carpool.testing.run_program import Given, prompts, run
from carpool.workflow import Program, Retrieve
from carpool.workflow.programs import condense, corrective, hyde, irg, multistep, one_shot, recomp
from tests.deploy.doc_blocks import BLOCK

Q = "Which tower is older?"
Case = tuple[Program, list[Given], list[str], list[set[str]]]
"""The results of the steps in order; the searched texts; the results that each prompt shows."""
CASES: dict[str, Case] = {
    "one_shot": (one_shot.one_shot, [["Found."]], [Q], [{"Found."}]),
    "hyde": (hyde.hyde, ["Made up.", ["Found."]], ["Made up."], [set(), {"Found."}]),
    "multistep": (
        multistep.multistep,
        ["One?", ["First."], "It was A.", "Two?", ["Second."], "It was B.", "None.", ["Third."]],
        ["One?", "Two?", Q],
        [
            set(),
            {"One?", "First."},
            {"One?", "It was A."},
            {"Two?", "Second."},
            {"One?", "It was A.", "Two?", "It was B."},
            {"One?", "It was A.", "Two?", "It was B.", "Third."},
        ],
    ),
    "irg": (
        irg.irg,
        [["First."], "It was A.", ["Second."], "It was B.", ["Third."]],
        [Q, f"{Q} It was A.", f"{Q} It was B."],
        [{"First."}, {"Second."}, {"Third."}],
    ),
    "recomp": (
        recomp.recomp,
        [["First.", "Second."], "It was A.", "It was B."],
        [Q],
        [{"First."}, {"Second."}, {"First.", "Second.", "It was A.", "It was B."}],
    ),
    "corrective, good": (
        corrective.corrective,
        [["First."], " Yes."],
        [Q],
        [{"First."}, {"First."}],
    ),
    "corrective, bad": (
        corrective.corrective,
        [["First."], "No.", "Other?", ["Second."]],
        [Q, "Other?"],
        [{"First."}, set(), {"First.", "Second."}],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_program_searches_these_texts_and_its_prompts_show_these_results(name: str) -> None:
    program, results, searched, shown = CASES[name]
    steps = run(program, results, question=Q).steps
    assert [step.text for step in steps if isinstance(step, Retrieve)] == searched
    texts = {each for one in results for each in ([one] if isinstance(one, str) else one)}
    users = [prompt.user for prompt in prompts(program, results, question=Q)]
    asked = {"multistep": {1: "One?", 3: "Two?"}}.get(name, {})
    assert all(asked.get(number, Q) in user for number, user in enumerate(users))
    assert [{text for text in texts if str(text) in user} for user in users] == shown


def test_a_conversation_is_searched_for_by_a_question_that_stands_alone() -> None:
    talk = [("user", "What is Eiffel's tower?"), ("assistant", "A tower.")]
    given: list[Given] = ["How high is Eiffel's tower?", ["300 m."]]
    asked = {"question": "How high is it?", "messages": talk}
    steps, answer = run(condense.condense, given, **asked)
    assert steps[1] == Retrieve("How high is Eiffel's tower?")
    assert answer.values["question"] == "How high is Eiffel's tower?"
    first, last = prompts(condense.condense, given, **asked)
    assert "user: What is Eiffel's tower?\nassistant: A tower." in first.user
    assert "Question: How high is Eiffel's tower?" in last.user
    assert run(condense.condense, [["300 m."]], question=Q).steps == (Retrieve(Q),)


def test_the_listings_of_the_modules_run_as_they_are_printed(tmp_path: Path) -> None:
    modules = (carpool.workflow, carpool.testing.run_program)  # the second uses the first
    listings = [text for each in modules for _, text in BLOCK.findall(each.__doc__ or "")]
    (file := tmp_path / "printed.py").write_text("\n".join(listings))
    printed = run_path(str(file))["hyde"]
    by_both = [run(each, ["", ["Found."]], question=Q) for each in (printed, hyde.hyde)]
    assert by_both[0] == by_both[1]

"""`carpool.testing.run_program`: a program runs as in services, with the results of a test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from carpool.testing.run_program import Given, prompts, run
from carpool.workflow import Answer, Found, Generate, Retrieve, Run, Said, WorkflowError, workflow
from carpool.workflow.programs.corrective import corrective
from carpool.workflow.programs.hyde import hyde
from carpool.workflow.settings import WorkflowSettings
from generator.settings import GeneratorSettings

ROOT = Path(__file__).parents[2]
LIGHT = {"carpool", "schemas", "msgspec", "typing_extensions"}


def test_results_in_order_give_the_steps_and_the_answer() -> None:
    steps, answer = run(hyde, ["It is in Rome.", ["A text.", "Another."]], question="Where?")
    assert steps == (Generate("hyde", question="Where?", max_tokens=96), Retrieve("It is in Rome."))
    assert [hit.text for hit in answer.passages] == ["A text.", "Another."]


@pytest.mark.parametrize(("grade", "kinds"), [("Yes.", 2), ("No.", 4)])
def test_a_function_of_the_step_chooses_the_path(grade: str, kinds: int) -> None:
    def result(step: Retrieve | Generate) -> Given:
        if isinstance(step, Retrieve):
            return [f"about {step.text}"]
        return Said(grade if step.template == "grade" else "in other words", tokens=2)

    assert len(run(corrective, result).steps) == kinds


def test_a_list_of_steps_gets_a_list_and_a_search_no_more_than_it_asks_for() -> None:
    @workflow("lists", version=1)
    def lists(question: str) -> Run:
        more, first = yield [Retrieve("a"), Retrieve("b", top_k=1)]
        (one,) = yield [Generate(prompt="one")]
        two = yield Generate(prompt="two")
        return Answer("cited", question=one, tokens=two.tokens, passages=more + first)

    answer = run(lists, [["a"], ["b", "c"], "one", Said("two", tokens=2)]).answer
    assert [hit.text for hit in answer.passages] == ["a", "b"]
    assert (answer.values["question"], answer.values["tokens"]) == (Said("one"), 2)


@pytest.mark.parametrize(
    ("results", "words"),
    [
        (["a text"], r"hyde@1, step 2: the test gives 1 results, and none for Retrieve"),
        ([["a passage"]], r"hyde@1, step 1: its result is a text, and the test gives \['a pa"),
        (["a text", "a text"], r"hyde@1, step 2: its result is passages, and the test gives 'a t"),
    ],
)
def test_a_result_that_is_missing_or_does_not_fit_is_named(
    results: list[Given], words: str
) -> None:
    with pytest.raises(WorkflowError, match=words):
        run(hyde, results)


def test_a_program_that_is_not_pure_or_takes_too_much_fails_as_in_a_service() -> None:
    answers = iter("abc")

    @workflow("moody", version=1)
    def moody(question: str) -> Run:
        for _ in range(3):
            yield Generate(prompt=next(answers))
        return Answer("cited", question=question, passages=Found())

    with pytest.raises(WorkflowError, match="moody@1, step 1: the program asks for another step"):
        run(moody, lambda step: "text")
    with pytest.raises(WorkflowError, match="its steps took 9 tokens, and 8 are allowed"):
        run(hyde, [Said("text", tokens=9)], limits=WorkflowSettings(tokens_max=8))


def test_programs_and_their_tests_need_the_base_install_only() -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        "import carpool.workflow, carpool.workflow.load, carpool.testing.run_program\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(new - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert "carpool" in (new := set(done.stdout.split())) and new <= LIGHT, done.stderr


def test_each_prompt_is_shown_as_the_model_would_get_it_and_says_what_it_left_out() -> None:
    texts = [f"{name} " * 100 for name in "abcdef"]
    results = [texts[:3], "No.", "Where is it?", texts[3:]]
    grade, rewrite, answer = prompts(corrective, results, question="Where?")
    assert (list(grade.given), list(rewrite.given), list(answer.given)) == (
        [1, 2, 3],
        [],
        [1, 2, 3, 4, 5, 6],
    )
    assert grade.user.startswith("[1] : a a") and "Question: Where?" in grade.user
    short = GeneratorSettings(prompt_chars_max=800)
    *_, answer = prompts(corrective, results, question="Where?", settings=short)
    assert [hit.text[0] for hit in answer.given.values()] == ["a", "d"]
    assert [hit.text[0] for hit in answer.left_out] == ["b", "c", "e", "f"]

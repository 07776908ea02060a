"""Programs are run again after each step: with the same results they ask for the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.workflow import Answer, Found, Generate, Program, Retrieve, Said, workflow
from carpool.workflow.load import load_programs
from carpool.workflow.program import Run
from carpool.workflow.resume import LINES_MAX, NextSteps, resume
from carpool.workflow.steps import WorkflowError
from schemas.workflow import StepResult
from tests.records import some_hits

PROGRAMS = load_programs()
Rounds = tuple[tuple[StepResult, ...], ...]


def results(asked: NextSteps, text: str, hits: int) -> tuple[StepResult, ...]:
    """Results of steps: this text, or so many passages."""
    return tuple(
        StepResult(digest=step.digest(), text=text, hits=tuple(some_hits(hits)))
        if isinstance(step, Retrieve)
        else StepResult(digest=step.digest(), text=text, output_tokens=1)
        for step in asked.steps
    )


def made(body: Callable[[str], Run], steps_max: int = 12) -> Program:
    return workflow("mine", version=1, steps_max=steps_max)(body)


def failure(program: Program, rounds: Rounds = ()) -> WorkflowError:
    with pytest.raises(WorkflowError) as error:
        resume(program, "why?", rounds)
    return error.value


@given(
    st.sampled_from(sorted({name for name, _ in PROGRAMS})),
    st.lists(
        st.tuples(st.sampled_from(["yes", "None", "", "a b"]), st.integers(0, 5)), min_size=30
    ),
)
def test_every_built_in_program_ends_whatever_its_steps_return(
    name: str, given_results: Sequence[tuple[str, int]]
) -> None:
    program, rounds = PROGRAMS[name, 1], list[tuple[StepResult, ...]]()
    for text, hits in given_results:
        asked = resume(program, "Who was that?", rounds)
        assert asked == resume(program, "Who was that?", rounds)
        assert asked.done == sum(map(len, rounds))
        if asked.answer is not None:
            return
        rounds.append(results(asked, text, hits))
    raise AssertionError(f"{name} does not end")


def test_a_list_of_steps_gets_a_list_and_a_step_gets_its_result() -> None:
    seen: list[Any] = []

    def body(question: str) -> Run:
        seen.append((yield [Retrieve("a"), Retrieve("b", top_k=2)]))
        seen.append((yield [Generate(prompt="one")]))
        seen.append((yield Generate(prompt="two")))
        return Answer("cited", question=question, passages=seen[0][0])

    program, rounds = made(body), list[tuple[StepResult, ...]]()
    for count in (2, 1, 1):
        asked = resume(program, "why?", rounds)
        assert len(asked.steps) == count
        rounds.append(results(asked, "t", 1))
    seen.clear()
    assert resume(program, "why?", rounds).answer is not None
    assert seen == [
        [Found(some_hits(1)), Found(some_hits(1))],
        [Said("t", tokens=1)],
        Said("t", tokens=1),
    ]


def endless(question: str) -> Run:
    while True:
        yield Retrieve(question)


def silent(question: str) -> Run:
    while True:
        try:
            question += ""
        except Exception:
            continue
    yield Retrieve(question)


def raising(question: str) -> Run:
    yield Retrieve(question)
    raise ValueError("no luck")


def many(question: str) -> Run:
    yield [Retrieve(question)] * 10_000
    return Answer("cited", question=question, passages=[])


def mixed(question: str) -> Run:
    yield [Retrieve(question), Generate(prompt="x")]
    return Answer("cited", question=question, passages=[])


def blank(question: str) -> Run:
    yield Retrieve(" ")
    return Answer("cited", question=question, passages=[])


def unfinished(question: str) -> Run:
    yield Retrieve(question)
    return question  # type: ignore[return-value]


def half(question: str) -> Run:
    yield Retrieve("half of a pair: \ud83d")
    return Answer("cited", question=question, passages=[])


def huge(question: str) -> Run:
    yield Generate(prompt="{n}", n=10**5_000)
    return Answer("cited", question=question, passages=[])


def odd(question: str) -> Run:
    yield Generate("hyde", question=object())  # type: ignore[arg-type]
    return Answer("cited", question=question, passages=[])


@pytest.mark.parametrize(
    ("body", "rounds", "kind", "said"),
    [
        (silent, 0, "workflow_failed", "step 1: the program ran 100000 lines without a step"),
        (endless, 12, "workflow_limit", "mine@1, step 13: it asks for more than 12 steps"),
        (raising, 1, "workflow_failed", "mine@1, step 2: the program raised ValueError: no luck"),
        (many, 0, "workflow_failed", "mine@1, step 1: it asks for 10000 steps side by side"),
        (mixed, 0, "workflow_failed", "yields Generate, Retrieve: yield a Retrieve or a Generate"),
        (blank, 0, "workflow_failed", "Retrieve needs a text that is not blank"),
        (unfinished, 1, "workflow_failed", "it returned str, and must return an Answer"),
        (odd, 0, "workflow_failed", "question is object"),
        (half, 0, "workflow_failed", "step 1: the program raised UnicodeEncodeError"),
        (huge, 0, "workflow_failed", "step 1: the program raised ValueError"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_bad_program_ends_with_a_message_that_names_step_and_cause(
    body: Callable[[str], Run], rounds: int, kind: str, said: str
) -> None:
    result = StepResult(digest=Retrieve("why?").digest(), text="", hits=())
    error = failure(made(body), ((result,),) * rounds)
    assert error.kind == kind
    assert said in str(error)


def test_a_program_that_asks_for_another_step_than_its_journal_says_has_changed() -> None:
    hyde = PROGRAMS["hyde", 1]
    forged = StepResult(digest="00", text="x")
    error = failure(hyde, ((forged,),))
    assert error.kind == "workflow_changed"
    assert "hyde@1, step 1: the program asks for another step" in str(error)
    cut = resume(hyde, "why?", ())
    short = failure(hyde, ((*results(cut, "a", 0), forged),))
    assert short.kind == "workflow_changed"


def test_the_lines_of_a_long_run_are_counted_for_each_step_alone() -> None:
    def body(question: str) -> Run:
        for _ in range(12):
            words = [str(number) for number in range(10)]
            for _ in range(LINES_MAX // 4):
                words.reverse()
            yield Retrieve(question)
        return Answer("cited", question=question, passages=[])

    result = StepResult(digest=Retrieve("why?").digest(), text="", hits=())
    assert resume(made(body), "why?", ((result,),) * 12).answer is not None

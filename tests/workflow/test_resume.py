"""Programs are run again after each step: with the same results they ask for the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.testing.run_program import Given, run
from carpool.workflow import Answer, Found, Generate, Program, Retrieve, workflow
from carpool.workflow.load import load_programs
from carpool.workflow.program import Run
from carpool.workflow.resume import resume
from carpool.workflow.steps import Step, WorkflowError
from schemas.workflow import StepResult
from tests.records import some_hits

PROGRAMS = load_programs()


def made(body: Callable[[str], Run]) -> Program:
    return workflow("mine", version=1)(body)


@given(
    st.sampled_from(sorted({name for name, _ in PROGRAMS})),
    st.lists(
        st.tuples(st.sampled_from(["yes", "None", "", "a b"]), st.integers(0, 5)), min_size=30
    ),
)
def test_every_built_in_program_ends_whatever_its_steps_return(
    name: str, results: Sequence[tuple[str, int]]
) -> None:
    """Each run is repeated after each step, and must ask for the same steps."""
    drawn = iter(results)

    def result(step: Step) -> Given:
        text, hits = next(drawn)
        return Found(some_hits(hits)) if isinstance(step, Retrieve) else text

    run(PROGRAMS[name, 1], result)


def test_passages_of_two_searches_add_up_in_order_each_once() -> None:
    first, second, third = some_hits(3)
    both = Found([first, second]) + Found([third, second])
    assert list(both) == [first, second, third]


def endless(question: str) -> Run:
    while True:
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


def shows_none(question: str) -> Run:
    yield Generate("grade", question=question, passages_max=0)
    return Answer("cited", question=question)


def odd(question: str) -> Run:
    yield Generate("hyde", question=object())  # type: ignore[arg-type]
    return Answer("cited", question=question, passages=[])


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (endless, "mine@1, step 13: it asks for more than 12 steps"),
        (raising, "mine@1, step 2: the program raised ValueError: no luck"),
        (many, "mine@1, step 1: it asks for 10000 steps side by side"),
        (mixed, "yields Generate, Retrieve: yield a Retrieve or a Generate"),
        (blank, "Retrieve needs a text that is not blank"),
        (unfinished, "it returned str, and must return an Answer"),
        (odd, "question is object"),
        (half, "step 1: the program raised UnicodeEncodeError"),
        (huge, "step 1: the program raised ValueError"),
        (shows_none, "Generate takes a passages_max of 1 or more, not 0"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_bad_program_ends_with_a_message_that_names_step_and_cause(
    body: Callable[[str], Run], said: str
) -> None:
    with pytest.raises(WorkflowError) as error:
        run(made(body), lambda step: [])
    assert error.value.kind == ("workflow_limit" if body is endless else "workflow_failed")
    assert said in str(error.value)


def test_a_step_without_new_options_has_the_digest_that_journals_of_earlier_versions_have() -> None:
    asked = Generate("cited", question="q", max_tokens=5)
    assert asked.digest() == "c5118b4f1c568569"
    assert Generate("cited", question="q", max_tokens=5, passages_max=2).digest() != asked.digest()


@pytest.mark.parametrize("journal", ["forged", "too long"])
def test_a_program_that_asks_for_another_step_than_its_journal_says_has_changed(
    journal: str,
) -> None:
    hyde, forged = PROGRAMS["hyde", 1], StepResult(digest="00", text="x")
    (digest,) = resume(hyde, "why?", ()).digests
    own = () if journal == "forged" else (StepResult(digest=digest, text="a"),)
    with pytest.raises(WorkflowError, match=r"hyde@1, step 1: .* asks for another step") as error:
        resume(hyde, "why?", ((*own, forged),))
    assert error.value.kind == "workflow_changed"

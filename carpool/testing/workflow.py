"""Runs a program of a workflow in a test, without services: the test gives the results of steps.

```python
from carpool.testing.workflow import run

steps, answer = run(hyde, ["A made-up passage.", ["The passage that was found."]])
assert steps[1] == Retrieve("A made-up passage.")
```
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from carpool.workflow.journal import Workflows, with_results
from carpool.workflow.program import Program
from carpool.workflow.settings import WorkflowSettings
from carpool.workflow.steps import AnswerStep, Generate, Retrieve, Said, Step, WorkflowError
from schemas.hit import Hit
from schemas.query import Query
from schemas.record import ClusterId
from schemas.workflow import StepResult

Given: TypeAlias = str | Said | Sequence[Hit] | Sequence[str]
"""A text of the model; or passages, as `Found`, or as their texts, which are their ids too."""
Results: TypeAlias = Callable[[Step], Given] | Sequence[Given]

QUESTION = "Which question is asked?"
LIMITS = WorkflowSettings()


class Ran(NamedTuple):
    """What a program asked for: its steps in order, those side by side too, and its answer."""

    steps: tuple[Step, ...]
    answer: AnswerStep


def run(
    program: Program,
    results: Results,
    *,
    question: str = QUESTION,
    limits: WorkflowSettings = LIMITS,
) -> Ran:
    """Runs a program as services do: again from its beginning after every step.

    `results`: a function from a step to its result, or the results in order. Raises
    `WorkflowError` as a service would: for a step that cannot be, a program that is not pure, and
    the limits; and for a result that does not fit its step, is missing, or is left over.
    """
    workflows = Workflows(
        programs={(program.name, program.version): program},
        steps_max=limits.steps_max,
        tokens_max=limits.tokens_max,
    )
    query = workflows.begin(Query(query_id="test", text=question, workflow=program.name))
    steps: list[Step] = []
    while (answer := (asked := workflows.asked(query)).answer) is None:
        round = []
        for step in asked.steps:
            where = f"{program.label}, step {len(steps) + 1}"
            if not callable(results) and len(steps) >= len(results):
                raise WorkflowError(
                    f"{where}: the test gives {len(results)} results, and none for {step}"
                )
            given = results(step) if callable(results) else results[len(steps)]
            round.append(_result(where, step, given))
            steps.append(step)
        query = with_results(query, round)
    if not callable(results) and len(results) > len(steps):
        raise WorkflowError(
            f"{program.label}: the test gives {len(results)} results, and the program asked for "
            f"{len(steps)} steps"
        )
    return Ran(tuple(steps), answer)


def _result(where: str, step: Step, given: Given) -> StepResult:
    if isinstance(step, Retrieve) and not isinstance(given, str | Said):
        passages: Sequence[Hit | str] = given
        hits = tuple(_hit(number, one) for number, one in enumerate(passages, start=1))
        return StepResult(digest=step.digest(), text=step.text, hits=hits[: step.top_k])
    if isinstance(step, Generate) and isinstance(given, str | Said):
        said = Said(given) if isinstance(given, str) else given
        return StepResult(
            digest=step.digest(), text=said.text, is_cut=said.is_cut, output_tokens=said.tokens
        )
    needs = "passages" if isinstance(step, Retrieve) else "a text"
    raise WorkflowError(f"{where}: its result is {needs}, and the test gives {given!r} for {step}")


def _hit(number: int, passage: Hit | str) -> Hit:
    if isinstance(passage, Hit):
        return passage
    return Hit(doc_id=passage, score=1 / number, cluster=ClusterId(0), text=passage)

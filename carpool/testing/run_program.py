"""Runs a program of a workflow in a test, without services: the test gives the results of steps.

```python
from carpool.testing.run_program import run

steps, answer = run(hyde, ["A made-up passage.", ["The passage that was found."]])
assert steps[1] == Retrieve("A made-up passage.")
```

`prompts` returns what the model would be sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from carpool.workflow.program import Messages, Program
from carpool.workflow.settings import WorkflowSettings
from carpool.workflow.steps import AnswerStep, Generate, Retrieve, Said, Step, WorkflowError
from carpool.workflow.workflows import Workflows, with_results
from schemas.hit import Hit
from schemas.query import EarlierMessage, Query
from schemas.record import ClusterId
from schemas.workflow import StepResult

if TYPE_CHECKING:
    from generator.plan.prompt import FilledPrompt
    from generator.settings import GeneratorSettings

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
    messages: Messages = (),
    limits: WorkflowSettings = LIMITS,
) -> Ran:
    """Runs a program as services do: again from its beginning after every step.

    `results`: a function from a step to its result, or the results in order. `messages`: role and
    text of those before the question. Raises
    `WorkflowError` as a service would: for a step that cannot be, a program that is not pure, and
    the limits; and for a result that does not fit its step, is missing, or is left over.
    """
    steps, _, answer = _run(program, results, question, messages, limits)
    return Ran(steps, answer)


def prompts(
    program: Program,
    results: Results,
    *,
    question: str = QUESTION,
    messages: Messages = (),
    settings: GeneratorSettings | None = None,
) -> tuple[FilledPrompt, ...]:
    """Returns the prompt of each step that asks the model, in order, and that of the answer.

    Its `system` and `user` are the messages; it shows the passages `given`, by number, and had no
    room for those `left_out`. `settings`: the lengths and templates; None: the defaults. Raises
    `WorkflowError` as `run` does, and `RecordError` where a prompt cannot be made.
    """
    from generator.prompts import fill_step, load_templates
    from generator.settings import GeneratorSettings

    settings = settings or GeneratorSettings()
    templates = load_templates(settings)
    steps, given, answer = _run(program, results, question, messages, LIMITS)
    made: list[FilledPrompt] = []
    for number, step in enumerate((*steps, answer)):
        if isinstance(step, Generate) and not (step is answer and answer.is_written):
            searches = [one.hits for one in given[:number] if one.hits is not None]
            made.append(fill_step(step, settings, templates, searches=searches))
    return tuple(made)


def _run(
    program: Program,
    results: Results,
    question: str,
    messages: Messages,
    limits: WorkflowSettings,
) -> tuple[tuple[Step, ...], list[StepResult], AnswerStep]:
    workflows = Workflows(
        programs={(program.name, program.version): program},
        steps_max=limits.steps_max,
        tokens_max=limits.tokens_max,
    )
    made = [{"role": role, "text": text} for role, text in messages]
    said = msgspec.convert(made, tuple[EarlierMessage, ...])
    query = Query(query_id="test", text=question, workflow=program.name, messages=said)
    query = workflows.begin(query)
    steps, done = list[Step](), list[StepResult]()
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
        done += round
    if not callable(results) and len(results) > len(steps):
        raise WorkflowError(
            f"{program.label}: the test gives {len(results)} results, and the program asked for "
            f"{len(steps)} steps"
        )
    return tuple(steps), done, answer


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

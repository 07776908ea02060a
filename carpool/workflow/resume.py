"""To continue a workflow: run its program again, with the results of the finished steps. Pure.

The program runs in this process, without a limit of time: those of users run in a child
(`carpool.workflow.process`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from carpool.workflow.program import Asks, Messages, NextSteps, Program, Run
from carpool.workflow.steps import (
    AnswerStep,
    Found,
    Generate,
    Result,
    Retrieve,
    Said,
    WorkflowError,
)
from schemas.workflow import ROUND_STEPS_MAX, StepResult


def resume(
    program: Program,
    question: str,
    rounds: Sequence[Sequence[StepResult]],
    steps_max: int = 64,
    messages: Messages = (),
) -> NextSteps:
    """Returns what the program asks for after these rounds. Raises `WorkflowError`.

    `steps_max`: most steps of a run, if the program has not less. `messages`: what was said before
    the question. O(steps).
    """
    done, run = 0, None
    steps_max = min(steps_max, program.steps_max)
    results: Any = None
    for number in range(len(rounds) + 1):
        where = f"{program.label}, step {done + 1}"
        try:
            if run is None:
                run = program.begun(question, messages)
            asked = checked_steps(_next(run, results))
            if number == len(rounds):
                run.close()
                break
        except WorkflowError as error:
            raise WorkflowError(f"{where}: {error}", error.kind) from None
        except BaseException as error:  # SystemExit and the like are no reason to end a process
            raise WorkflowError(f"{where}: the program raised {in_words(error)}") from None
        _check_same(where, asked, rounds[number])
        given = tuple(_result(result) for result in rounds[number])
        results = list(given) if asked.is_list else given[0]
        done += len(given)
    if asked.answer is None and done + len(asked.steps) > steps_max:
        raise WorkflowError(
            f"{where}: it asks for more than {steps_max} steps (workflow.steps_max, or that of the "
            "program)",
            "workflow_limit",
        )
    return asked


def _next(run: Run, results: Any) -> Asks | AnswerStep:
    try:
        return run.send(results)
    except StopIteration as end:
        if not isinstance(end.value, AnswerStep):
            raise WorkflowError(
                f"it returned {type(end.value).__name__}, and must return an Answer"
            ) from None
        return end.value


def in_words(error: BaseException) -> str:
    """Returns an error that a program raised, even where its own text cannot be made."""
    try:
        said = str(error)[:300]
    except BaseException:
        said = "(it cannot be shown)"
    return f"{type(error).__name__}: {said}"


def checked_steps(asked: Asks | AnswerStep) -> NextSteps:
    """Returns a step, or a list of one kind, checked. Raises `WorkflowError`."""
    is_list = isinstance(asked, Sequence)
    steps: tuple[Any, ...] = tuple(asked) if isinstance(asked, Sequence) else (asked,)
    if not steps or len(steps) > ROUND_STEPS_MAX:
        raise WorkflowError(
            f"it asks for {len(steps)} steps side by side; 1 to {ROUND_STEPS_MAX} are allowed"
        )
    kinds = {type(step) for step in steps}
    if kinds not in ({Retrieve}, {Generate}) and (kinds != {AnswerStep} or is_list):
        names = ", ".join(sorted(getattr(kind, "name", kind.__name__) for kind in kinds))
        raise WorkflowError(
            f"it yields {names}: yield a Retrieve or a Generate, or a list of one of them; return "
            "an Answer"
        )
    for step in steps:
        step.check()
    digests = tuple(step.digest() for step in steps)  # raises where a value cannot be written
    return NextSteps(steps=steps, digests=digests, is_list=is_list)


def _check_same(where: str, asked: NextSteps, round: Sequence[StepResult]) -> None:
    if asked.digests != tuple(result.digest for result in round):
        raise WorkflowError(
            f"{where}: the program asks for another step than when it ran before: it is not pure "
            "(a set, a clock, a random number), its version was not raised, or the journal is not "
            "its own",
            "workflow_changed",
        )


def _result(result: StepResult) -> Result:
    if result.hits is not None:
        return Found(result.hits)
    return Said(result.text, tokens=result.output_tokens, is_cut=result.is_cut)

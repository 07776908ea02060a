"""To continue a workflow: run its program again, with the results of the finished steps. Pure.

A program is run in this process, so it must end: more than `LINES_MAX` lines between two steps are
an endless loop.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from carpool.workflow.program import Asks, Program, Run
from carpool.workflow.steps import (
    AnswerStep,
    Found,
    Generate,
    Result,
    Retrieve,
    Said,
    WorkflowError,
)
from schemas.workflow import StepResult

LINES_MAX = 100_000
BESIDE_MAX = 8
"""The most steps of a round."""


class _EndlessLoop(BaseException):
    """No `Exception`, so that a program does not catch it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NextSteps:
    """The next round of a program: steps of one kind, or its answer. `done`: finished steps.

    `digests`: of the steps. `is_list`: the program asked for a list, and gets one.
    """

    steps: tuple[Retrieve, ...] | tuple[Generate, ...]
    digests: tuple[str, ...]
    done: int
    is_list: bool = False

    @property
    def answer(self) -> AnswerStep | None:
        """The answer of the program, if it has ended."""
        first = self.steps[0]
        return first if isinstance(first, AnswerStep) else None


def resume(
    program: Program, question: str, rounds: Sequence[Sequence[StepResult]], steps_max: int = 64
) -> NextSteps:
    """Returns what the program asks for after these rounds. Raises `WorkflowError`.

    `steps_max`: most steps of a run, if the program has not less. O(steps).
    """
    done, run = 0, None
    steps_max = min(steps_max, program.steps_max)
    results: Any = None
    for number in range(len(rounds) + 1):
        where = f"{program.label}, step {done + 1}"
        try:
            if run is None:
                run = program.function(question)
            asked = _asked(_next(run, results), done)
        except WorkflowError as error:
            raise WorkflowError(f"{where}: {error}", error.kind) from None
        except _EndlessLoop:
            raise WorkflowError(
                f"{where}: the program ran {LINES_MAX} lines without a step: an endless loop"
            ) from None
        except Exception as error:
            what = f"{type(error).__name__}: {str(error)[:300]}"
            raise WorkflowError(f"{where}: the program raised {what}") from None
        if number == len(rounds):
            break
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
        with _lines_limited():
            return run.send(results)
    except StopIteration as end:
        if not isinstance(end.value, AnswerStep):
            raise WorkflowError(
                f"it returned {type(end.value).__name__}, and must return an Answer"
            ) from None
        return end.value


def _asked(asked: Asks | AnswerStep, done: int) -> NextSteps:
    """Returns a step, or a list of one kind, checked."""
    is_list = isinstance(asked, Sequence)
    steps: tuple[Any, ...] = tuple(asked) if isinstance(asked, Sequence) else (asked,)
    if not steps or len(steps) > BESIDE_MAX:
        raise WorkflowError(
            f"it asks for {len(steps)} steps side by side; 1 to {BESIDE_MAX} are allowed"
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
    return NextSteps(steps=steps, digests=digests, done=done, is_list=is_list)


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


@contextmanager
def _lines_limited() -> Iterator[None]:
    left = LINES_MAX

    def count(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise _EndlessLoop
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        yield
    finally:
        sys.settrace(before)

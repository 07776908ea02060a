"""Runs a program of a workflow with made-up results."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import msgspec

from carpool.errors import RecordError
from carpool.testing.run_program import run
from carpool.workflow.program import Program
from carpool.workflow.steps import AnswerStep, Found, Generate, Retrieve, Said, Step, WorkflowError
from cli.answers import quoted
from cli.settings import CarpoolSettings
from generator.prompts import fill_step, load_templates
from schemas.hit import Hit
from schemas.record import ClusterId

HITS = 3


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """A dry run of a program. `error`: why it did not reach its answer."""

    program: str
    steps: tuple[str, ...]
    answer: str | None
    error: str | None


def dry_run(
    program: Program, question: str, texts: Iterable[str], settings: CarpoolSettings
) -> Checked:
    """Returns the steps of a program. `texts`: what the model writes; then it is made up."""
    prompts, templates = settings.generator, load_templates(settings.generator)
    said = itertools.chain(texts, (f"made-up text {number}" for number in itertools.count(1)))
    steps: list[str] = []
    searches: list[Found] = []
    numbers = itertools.count(1)

    def result(step: Step) -> Found | Said:
        if isinstance(step, Retrieve):
            some = itertools.islice(numbers, step.top_k or HITS)
            searches.append(Found([made_up(one, prompts.passage_chars_max) for one in some]))
            ids = ", ".join(hit.doc_id for hit in searches[-1])
            steps.append(f"search  {quoted(step.text)} -> {ids}")
            return searches[-1]
        text = Said(next(said))
        steps.append(f"write   {_prompt(step)} -> {quoted(text.text)}")
        steps[-1] += left_out(fill_step(step, prompts, templates, searches).left_out)
        return text

    answer, wrong = None, None
    try:
        end = run(program, result, question=question, limits=settings.workflow).answer
        answer = _prompt(end)
        if not end.is_written:
            answer += left_out(fill_step(end, prompts, templates, searches).left_out)
    except WorkflowError as error:
        wrong = str(error)
    except RecordError as error:
        where = f"step {len(steps)}" if answer is None else "its answer"
        wrong = f"{program.label}, {where}: {error}"
    return Checked(program=program.label, steps=tuple(steps), answer=answer, error=wrong)


def made_up(number: int, chars: int) -> Hit:
    """Returns a passage of so many characters."""
    text = f"The text of made-up passage {number}. "
    return Hit(
        doc_id=f"doc-{number}",
        score=1 / number,
        cluster=ClusterId(0),
        title=f"Title {number}",
        text=(text * chars)[:chars],
    )


def left_out(hits: Iterable[Hit]) -> str:
    """Returns which passages a prompt does not show, as the end of a line."""
    ids = ", ".join(hit.doc_id for hit in hits)
    return f"; not in the prompt: {ids}" if ids else ""


def _prompt(step: Generate) -> str:
    """Returns what a prompt is made of, in words."""
    if isinstance(step, AnswerStep) and step.is_written:
        return f"the text {quoted(str(step.values['text']))}, {len(step.passages)} passages"
    of = f"template {step.template}" if step.prompt is None else quoted(step.prompt)
    return f"{of} with {', '.join(step.values) or 'no values'}"

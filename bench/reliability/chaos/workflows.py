"""Checks the answer of a workflow: runs its program again with what its steps found.

Passages of a text that the stand-in wrote have nearly equal scores, so any of them may be found.
Everything else is known: what is searched, each prompt, and what the stand-in writes for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.reliability.chaos import side_by_side
from carpool.testing.llm_text import words, write
from carpool.testing.workflow import run
from carpool.workflow.load import load_programs
from carpool.workflow.program import find
from carpool.workflow.steps import Found, Generate, Retrieve, Said, Step, WorkflowError
from generator.prompts import fill_step, load_templates
from generator.settings import GeneratorSettings
from schemas.answer import Answer
from schemas.hit import Hit

MODULE = side_by_side.__file__
PROGRAMS = {**load_programs(), ("side_by_side", 1): side_by_side.side_by_side}
NAMES = tuple(sorted({name for name, _ in PROGRAMS} - {"one_shot"}))
SETTINGS = GeneratorSettings()
TEMPLATES = load_templates(SETTINGS)


def written(step: Generate, searches: Sequence[Sequence[Hit]] = ()) -> str:
    """Returns what the stand-in writes for the prompt of a step. `searches`: found before it."""
    prompt = fill_step(step, SETTINGS, TEMPLATES, searches=searches)
    text = write(f"{prompt.system}\n{prompt.user}")
    return "".join(words(text)[: step.max_tokens]).strip()


def wrong_in(
    answer: Answer, program: str, question: str, passages: Mapping[str, Hit]
) -> str | None:
    """Returns what an `ok` answer has that its program does not give; None: nothing."""
    told, searches = iter(answer.steps), list[Found]()

    def result(step: Step) -> Found | Said:
        done = next(told, None)
        text = step.text if isinstance(step, Retrieve) else written(step, searches)
        if done is None or done.text != text:
            raise WorkflowError(f"its step is {done}, and not {text!r}")
        if isinstance(step, Generate):
            return Said(text)
        searches.append(Found([passages[doc_id] for doc_id in done.doc_ids]))
        return searches[-1]

    found = find(PROGRAMS, program)
    assert found is not None, "it was asked for"
    try:
        end = run(found, result, question=question).answer
    except (WorkflowError, KeyError) as error:
        return str(error)
    if next(told, None) is not None:
        return "it has more steps than its program"
    if answer.answer != (text := written(end, searches)):
        return f"its text is {answer.answer!r}, and not {text!r}"
    ids = [each.doc_id for each in end.passages]
    has_them = [each.id for each in answer.retrieved] == ids
    return None if has_them else f"its passages are not those of its prompt: {ids}"

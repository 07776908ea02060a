"""Checks an answer: its text and citations, and for a workflow the steps of its program.

The program is run again with what its steps found. Everything else is known: what is searched, each
prompt, what the stand-in writes for it, and what that text is cited for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from bench.data.made_up import DIMENSION
from bench.reliability.chaos import side_by_side
from carpool.embedding.hashing import HashingEmbedder
from carpool.testing.llm_text import words, write
from carpool.testing.run_program import run
from carpool.workflow.load import load_programs
from carpool.workflow.program import Program
from carpool.workflow.steps import AnswerStep, Found, Generate, Retrieve, Said, Step, WorkflowError
from generator.citing import Citing
from generator.prompts import fill_step, load_templates
from generator.settings import GeneratorSettings
from schemas.answer import Answer
from schemas.hit import Hit

MODULE = side_by_side.__file__
_OWN = (side_by_side.first_version, side_by_side.side_by_side)
PROGRAMS = {**load_programs(), **{(each.name, each.version): each for each in _OWN}}
NAMES = tuple(sorted({name for name, _ in PROGRAMS} - {"one_shot"}))
OTHER_TEXT = "another text than that of its question"
OTHER_CITED = "citations or quotes of another text"
SCORE_GAP_MIN = 1e-4
"""Scores that are nearer may be ordered differently: products of many queries are rounded
differently from those of a few."""
SETTINGS = GeneratorSettings()
TEMPLATES = load_templates(SETTINGS)
TOP_K = 3
"""As many passages as a prompt has by default, so that an answer names all of them."""


def written(step: Generate, searches: Sequence[Sequence[Hit]] = ()) -> str:
    """Returns what the stand-in writes for the prompt of a step. `searches`: found before it."""
    prompt = fill_step(step, SETTINGS, TEMPLATES, searches=searches)
    text = write(f"{prompt.system}\n{prompt.user}")
    return "".join(words(text)[: step.max_tokens]).strip()


def fields_of(end: AnswerStep, searches: Sequence[Sequence[Hit]] = ()) -> dict[str, Any]:
    """Returns text, citations and quotes of an `ok` answer with this last step."""
    text = written(end, searches)
    given = fill_step(end, SETTINGS, TEMPLATES, searches=searches).given
    citing = Citing(str(end.values["question"]), given, SETTINGS.passage_chars_max)
    return {"answer": text, "quotes": citing.quotes, **citing.of_text(text)}


def wrong_in(answer: Answer, end: AnswerStep, searches: Sequence[Sequence[Hit]] = ()) -> str | None:
    """Returns what kind of field an `ok` answer has wrong for its last step; None: nothing.

    Scores of citations are not compared: those of a search of many queries are rounded differently.
    """
    right = fields_of(end, searches)
    if answer.answer != right["answer"]:
        return OTHER_TEXT
    found = {name: getattr(answer, name) for name in right}
    return None if _without_scores(found) == _without_scores(right) else OTHER_CITED


def _without_scores(fields: Mapping[str, Any]) -> dict[str, Any]:
    cited = [msgspec.structs.replace(each, score=None) for each in fields["citations"]]
    return {**fields, "citations": cited}


def wrong_in_workflow(
    answer: Answer, program: Program, question: str, passages: Mapping[str, Hit]
) -> str | None:
    """Returns what kind of field the `ok` answer of a workflow has wrong; None: nothing."""
    told, searches = iter(answer.steps), list[Found]()

    def result(step: Step) -> Found | Said:
        done = next(told, None)
        text = step.text if isinstance(step, Retrieve) else written(step, searches)
        if done is None or done.text != text:
            raise WorkflowError(f"its step is {done}, and not {text!r}")
        if isinstance(step, Generate):
            return Said(text)
        if len(done.doc_ids) != min(step.top_k or TOP_K, len(passages)):
            raise WorkflowError(f"it found {len(done.doc_ids)} passages")
        searches.append(Found([passages[doc_id] for doc_id in done.doc_ids]))
        return searches[-1]

    try:
        end = run(program, result, question=question).answer
    except (WorkflowError, KeyError):
        return OTHER_TEXT
    ids = [each.doc_id for each in end.passages]
    if next(told, None) is not None or [each.id for each in answer.retrieved] != ids:
        return OTHER_TEXT
    return wrong_in(answer, end, searches)


class Nearest:
    """All passages, and whether a search of a workflow found those that are nearest to its text."""

    def __init__(self, passages: Mapping[str, Hit]) -> None:
        """`passages`: by id, not empty."""
        self._embedder = HashingEmbedder(DIMENSION)
        self._rows = self._embedder.encode([each.text for each in passages.values()])
        self._places = {doc_id: place for place, doc_id in enumerate(passages)}

    def are_right(self, answer: Answer) -> bool:
        """Whether each search of an answer found the nearest: of nearly equal ones any."""
        return all(
            self.is_right(step.text, step.doc_ids)
            for step in answer.steps
            if step.kind == "retrieve"
        )

    def is_right(self, text: str, doc_ids: Sequence[str]) -> bool:
        """Whether these are the nearest to a text, best first."""
        scores = self._rows @ self._embedder.encode([text])[0]
        places = [self._places.get(doc_id, -1) for doc_id in doc_ids]
        if min(places, default=-1) < 0 or len(set(places)) < len(places):
            return False
        best = np.sort(scores)[::-1][: len(places)]
        return bool(np.all(scores[places] >= best - SCORE_GAP_MIN))

"""One answer, judged by what is known to be right and by its own citations. Pure.

Citations are judged as ALCE does (Gao et al., 2023, "Enabling Large Language Models to Generate
Text with Citations"), by the words that a sentence and a passage share instead of a model: Carpool
did that when it made the answer, and a citation with a `quote` has support. So a citation of a
passage without support is wrong, and a sentence without a citation with support is not covered;
two passages that support a sentence only together do not.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from carpool.evaluation.gold import f1, has_gold
from carpool.statements import statements, without_markers
from schemas.answer import Citation
from schemas.batch import AnswerLine

HIT_RATES = {k: f"hit_rate_at_{k}" for k in (1, 3, 5, 10)}


class CitedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A citation: whose, of which passage, for which sentence, by which quote ("": by none)."""

    by: str
    doc_id: str
    sentence: str = ""
    quote: str = ""
    support: float = 0.0


class Gold(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a file of questions: any of `answers` is right, any of `passages` is to be found.

    `text` or `question`: what is asked.
    """

    answers: tuple[str, ...] = ()
    passages: tuple[str | int, ...] = ()
    text: str | None = None
    question: str | None = None

    @property
    def ids(self) -> frozenset[str]:
        """The ids of `passages`."""
        return frozenset(map(str, self.passages))


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """An answer, what is known to be right, and each figure of it, from 0 to 1; see `judge`."""

    answer: AnswerLine
    gold: Gold
    values: dict[str, float]


def cited_rows(text: str, citations: Sequence[Citation]) -> tuple[CitedRow, ...]:
    """Returns the citations of an answer with their texts."""
    return tuple(
        CitedRow(
            by=one.by or "model",
            doc_id=one.doc_id,
            sentence=text[one.sentence.start : one.sentence.end] if one.sentence else "",
            quote=one.snippet if one.quote else "",
            support=one.support or 0.0,
        )
        for one in citations
    )


def supported_sentences(citations: Sequence[CitedRow]) -> int:
    """Returns how many sentences of an answer a passage supports."""
    return len({one.sentence for one in citations if one.quote})


def judge(answer: AnswerLine, gold: Gold) -> Judged:
    """Returns the figures of an answer, without those that it has nothing for.

    An answer that failed has found and said nothing right.
    """
    values = dict[str, float]()
    cited = cited_rows(text := answer.answer or "", answer.citations)
    if right := gold.ids:
        places = (place for place, one in enumerate(answer.retrieved, 1) if one.id in right)
        first = next(places, None)
        for k, name in HIT_RATES.items():
            values[name] = float(first is not None and first <= k)
        values["mrr"] = 1 / first if first else 0.0
        passages = {one.doc_id for one in cited}
        values["gold_passage_cited"] = float(not passages.isdisjoint(right))
        if passages:
            values["cited_passages_gold"] = len(passages & right) / len(passages)
    if gold.answers:
        plain = without_markers(text)
        values["answer_match"] = float(has_gold(plain, gold.answers))
        values["f1"] = f1(plain, gold.answers)
    if markers := [bool(one.quote) for one in cited if one.by == "model"]:
        values["citation_precision"] = sum(markers) / len(markers)
    if sentences := sum(1 for _ in statements(text)):
        values["citation_recall"] = supported_sentences(cited) / sentences
    if answer.grounded is not None:
        values["grounded"] = float(answer.grounded)
    return Judged(answer=answer, gold=gold, values=values)

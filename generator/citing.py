"""Says what an answer is checked by: its citations, its quote, and whether it is grounded."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from generator.plan.attribution import Attributed, attribute
from generator.plan.citations import cite
from generator.plan.evidence import Evidence
from generator.plan.prompt import fitting_part
from generator.plan.quote import choose_quote
from schemas.answer import Citation, InventedCitation, Quote, TextSpan
from schemas.retrieval import Hit

TITLE_CHARS_MAX = 500
SNIPPET_CHARS_MAX = 200


class Citing:
    """The passages `given` in the prompt of an answer, by their numbers, as records cite them.

    `passage_chars_max`: the most that the prompt shows of a passage. Not thread-safe.
    """

    def __init__(self, question: str, given: Mapping[int, Hit], passage_chars_max: int) -> None:
        self.given = given
        self._question = question
        self._passage_chars_max = passage_chars_max
        self._evidence = Evidence({n: (hit.title, hit.text) for n, hit in given.items()})

    @cached_property
    def quotes(self) -> tuple[Quote, ...]:
        """The quote; none where the passages have no text."""
        chosen = choose_quote(self._question, self._evidence)
        if chosen is None:
            return ()
        hit = self.given[chosen.n]
        quote = Quote(
            n=chosen.n,
            doc_id=hit.doc_id,
            start=chosen.start,
            end=chosen.end,
            text=hit.text[chosen.start : chosen.end],
            title=hit.title[:TITLE_CHARS_MAX],
            url=_url(hit),
        )
        return (quote,)

    def of_text(self, text: str) -> dict[str, Any]:
        """Returns the fields of an answer that say what its text is cited for."""
        markers = cite(text, passages=self.given)
        attributed = attribute(self._question, text, markers.valid, self._evidence)
        return {
            "citations": tuple(map(self._citation, attributed)),
            "grounded": any(one.is_supported for one in attributed) if text.strip() else None,
            "invented_citations": tuple(
                InventedCitation(n=cited.n, start=cited.start, end=cited.end)
                for cited in markers.invented
            ),
        }

    def of_quote(self) -> dict[str, Any]:
        """Returns these fields of an answer that is the quote."""
        citations = tuple(
            Citation(
                **_of_passage(quote.n, self.given[quote.n]),
                by="text",
                snippet=quote.text,
                sentence=TextSpan(start=0, end=len(quote.text)),
                quote=TextSpan(start=quote.start, end=quote.end),
                support=1.0,
            )
            for quote in self.quotes
        )
        return {"citations": citations, "grounded": bool(citations)}

    def _citation(self, one: Attributed) -> Citation:
        hit, support, marker = self.given[one.n], one.support, one.marker
        quote = None
        if support is not None and one.is_supported:
            quote = TextSpan(start=support.by.start, end=support.by.end)
            snippet = hit.text[quote.start : quote.end]
        else:
            shown = fitting_part(self._question, hit.text, self._passage_chars_max)
            snippet = fitting_part(self._question, shown, SNIPPET_CHARS_MAX)
        return Citation(
            **_of_passage(one.n, hit),
            by="text" if marker is None else "model",
            snippet=snippet,
            start=None if marker is None else marker.start,
            end=None if marker is None else marker.end,
            sentence=one.sentence and TextSpan(start=one.sentence[0], end=one.sentence[1]),
            quote=quote,
            support=None if support is None else support.share,
        )


def _of_passage(n: int, hit: Hit) -> dict[str, Any]:
    return {
        "n": n,
        "doc_id": hit.doc_id,
        "title": hit.title[:TITLE_CHARS_MAX],
        "url": _url(hit),
        "metadata": hit.metadata,
        "score": hit.score,
    }


def _url(hit: Hit) -> str | None:
    url = (hit.metadata or {}).get("url")
    return url if isinstance(url, str) else None

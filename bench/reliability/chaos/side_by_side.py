"""A program whose steps are side by side: the services of a run load this module."""

from carpool.workflow import Answer, Generate, Retrieve, workflow


@workflow("side_by_side", version=1)
def side_by_side(question):  # type: ignore[no-untyped-def]
    """Two searches side by side, then two texts, and two searches with these."""
    lists = yield [Retrieve(question), Retrieve(f"more of {question}", top_k=2)]
    said = yield [Generate("summary", question=question, passages=found) for found in lists]
    found, more = yield [Retrieve(text.text) for text in said]
    return Answer("cited", question=question, passages=found + more)

"""A program whose steps are side by side, in two versions: the second begins in mid-run."""

from carpool.workflow import Answer, Generate, Retrieve, workflow


@workflow("side_by_side", version=1)
def first_version(question):  # type: ignore[no-untyped-def]
    """Two searches side by side, then two texts, and two searches with these."""
    lists = yield [Retrieve(question), Retrieve(f"more of {question}", top_k=2)]
    said = yield [Generate("summary", question=question, passages=found) for found in lists]
    found, more = yield [Retrieve(text.text) for text in said]
    return Answer("cited", question=question, passages=found + more)


# In mid-run: what follows.
@workflow("side_by_side", version=2)
def side_by_side(question):  # type: ignore[no-untyped-def]
    """A text first, then two searches side by side."""
    said = yield Generate("hyde", question=question, max_tokens=32)
    found, more = yield [Retrieve(question), Retrieve(f"{said.text} {question}", top_k=2)]
    return Answer("cited", question=question, passages=found + more)

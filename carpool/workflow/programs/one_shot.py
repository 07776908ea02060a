"""One search and one answer: what a query gets that names no workflow."""

from carpool.workflow import Answer, Retrieve, Run, workflow


@workflow("one_shot", version=1)
def one_shot(question: str) -> Run:
    """Search once, and answer from what was found."""
    found = yield Retrieve(question)
    return Answer("cited", question=question, passages=found)

"""HyDE (Gao et al. 2023, arXiv:2212.10496): search with a passage that the model makes up."""

from carpool.workflow import Answer, Generate, Retrieve, Run, workflow


@workflow("hyde", version=1)
def hyde(question: str) -> Run:
    """Let the model write a passage that would answer the question, and search with it."""
    guess = yield Generate("hyde", question=question, max_tokens=96)
    found = yield Retrieve(guess.text or question)
    return Answer("cited", question=question, passages=found)

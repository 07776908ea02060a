"""Corrective RAG (Yan et al. 2024, arXiv:2401.15884): search again if the passages do not fit."""

from carpool.workflow import Answer, Generate, Retrieve, Run, workflow


@workflow("corrective", version=1)
def corrective(question: str) -> Run:
    """Search, let the model grade the passages, and search with another question if they fail."""
    found = yield Retrieve(question)
    grade = yield Generate("grade", question=question, passages=found, max_tokens=8)
    if not grade.text.strip().lower().startswith("yes"):
        other = yield Generate("rewrite", question=question, max_tokens=48)
        if other.text.strip():
            found += yield Retrieve(other.text)
    return Answer("cited", question=question, passages=found)

"""RECOMP (Xu et al. 2023, arXiv:2310.04408): summarise each passage, then answer from these."""

from carpool.workflow import Answer, Generate, Retrieve, Run, workflow


@workflow("recomp", version=1)
def recomp(question: str) -> Run:
    """Search, summarise each passage for the question side by side, and answer."""
    found = yield Retrieve(question)
    if not found:
        return Answer("cited", question=question, passages=found)
    said = yield [
        Generate("summary", question=question, passages=found[at : at + 1], max_tokens=64)
        for at in range(min(len(found), 4))
    ]
    notes = [(hit.title, one.text.strip()) for hit, one in zip(found, said, strict=False)]
    return Answer("cited_notes", question=question, passages=found, notes=notes)

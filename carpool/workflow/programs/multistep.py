"""Multistep: take the question apart, and search for each part (LlamaIndex's query engine)."""

from carpool.workflow import Answer, Generate, Retrieve, Run, workflow

PARTS_MAX = 3


@workflow("multistep", version=1)
def multistep(question: str) -> Run:
    """Ask for the next part of the question, search, answer it; up to three times."""
    notes: list[tuple[str, str]] = []
    for _ in range(PARTS_MAX):
        part = yield Generate("next_question", question=question, notes=notes, max_tokens=48)
        text = part.text.strip()
        if not text or text.rstrip(".").lower() == "none" or text in dict(notes):
            break
        found = yield Retrieve(text, top_k=2)
        said = yield Generate("answer_part", question=text, passages=found, max_tokens=96)
        notes.append((text, said.text.strip()))
    found = yield Retrieve(question)
    return Answer("cited_notes", question=question, passages=found, notes=notes)

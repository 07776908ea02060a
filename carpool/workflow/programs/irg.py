"""IRG, or Iter-RetGen (Shao et al. 2023, arXiv:2305.15294): search with the last answer, again."""

from carpool.workflow import Answer, Generate, Retrieve, Run, workflow

ROUNDS = 2


@workflow("irg", version=1)
def irg(question: str) -> Run:
    """Search, answer, and search again with question and answer together; two rounds."""
    found = yield Retrieve(question)
    for _ in range(ROUNDS):
        said = yield Generate("answer_part", question=question, passages=found, max_tokens=96)
        found = yield Retrieve(f"{question} {said.text}")
    return Answer("cited", question=question, passages=found)

"""Condense: the model writes the question of a conversation so that it needs no other message."""

from carpool.workflow import Answer, Generate, Retrieve, Run, workflow
from carpool.workflow.program import Messages

MESSAGES_MAX = 6


@workflow("condense", version=1)
def condense(question: str, messages: Messages) -> Run:
    """Write the last question of a conversation anew, so that it stands alone, and answer that."""
    if messages:
        said = yield Generate(
            "condense", question=question, messages=messages[-MESSAGES_MAX:], max_tokens=64
        )
        question = said.text.strip() or question
    found = yield Retrieve(question)
    return Answer("cited", question=question, passages=found)

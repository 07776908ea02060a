"""Programs whose steps are of every kind: alone and side by side, after a search and after a text.

The tests load this file as an operator's module.
"""

from carpool.workflow import Answer, Generate, Retrieve, workflow


@workflow("every_kind", version=1, steps_max=16)
def every_kind(question):
    """Begins with searches side by side; then each kind of step follows each kind of result."""
    found, more = yield [Retrieve(question), Retrieve(f"{question} again", top_k=2)]
    found += yield Retrieve(f"{question} {more[0].title}")
    said = yield Generate("answer_part", question=question, passages=found)
    said = yield Generate("answer_part", question=said.text, passages=more)
    parts = yield [
        Generate("summary", question=said.text, passages=found[at : at + 1]) for at in range(2)
    ]
    lists = yield [Retrieve(part.text) for part in parts]
    last = yield Generate("summary", question=question, passages=lists[1])
    return Answer("cited", question=last.text, passages=lists[0])


@workflow("search_first", version=1)
def search_first(question):
    """Begins with one search; its answer follows a search."""
    found = yield Retrieve(question)
    return Answer("cited", question=question, passages=found)


@workflow("text_first", version=1)
def text_first(question):
    """Begins with a generation, and ends with a text that a step wrote."""
    guess = yield Generate("hyde", question=question)
    found = yield Retrieve(guess.text)
    said = yield Generate("answer_part", question=question, passages=found)
    return Answer(text=said, passages=found)

"""Programs that try to stop the service that runs them, and good ones among them.

The tests load this file as an operator's module.
"""

import itertools
import re

from carpool.workflow import Answer, Generate, Retrieve, workflow


@workflow("good", version=1)
def good(question):
    """Searches, writes, and answers."""
    found = yield Retrieve(question)
    said = yield Generate("answer_part", question=question, passages=found)
    return Answer("cited", question=f"{question} {said.text}", passages=found)


@workflow("exits", version=1)
def exits(question):
    """Ends its process."""
    yield Retrieve(question)
    raise SystemExit


@workflow("interrupts", version=1)
def interrupts(question):
    """Raises what Ctrl-C raises."""
    raise KeyboardInterrupt
    yield Retrieve(question)


class Unspeakable(BaseException):
    """Cannot be shown."""

    def __str__(self):
        raise GeneratorExit


@workflow("unspeakable", version=1)
def unspeakable(question):
    """Raises an error whose text cannot be made."""
    raise Unspeakable
    yield Retrieve(question)


class Text(str):
    """Raises where it is looked at."""

    def strip(self, *chars):
        raise SystemExit


@workflow("strange_text", version=1)
def strange_text(question):
    """Searches a text that raises."""
    yield Retrieve(Text(question))


@workflow("backtracks", version=1)
def backtracks(question):
    """Matches a pattern that tries too much."""
    re.match("(a+)+$", "a" * 40 + "b")
    yield Retrieve(question)


@workflow("counts", version=1)
def counts(question):
    """Counts without end, in no line of Python."""
    yield Retrieve(str(sum(itertools.repeat(1))))


@workflow("large", version=1)
def large(question):
    """Takes two gigabytes."""
    yield Retrieve("a" * 2_000_000_000)


@workflow("stubborn", version=1)
def stubborn(question):
    """Does not end when it is closed, and then computes."""
    while True:
        try:
            yield Retrieve(question)
        finally:
            while True:
                question += ""


@workflow("long_winded", version=1)
def long_winded(question):
    """Asks for more than a message may have."""
    yield [Generate(prompt="{words}", words=["x" * 60_000] * 20) for _ in range(8)]


LATE = "step 1: the program (computed for 0.25 s without an answer|gave no answer for 2.5 s)"
"""The second, where the machine is busy."""
SAID = {
    "exits": "step 2: the program raised SystemExit",
    "interrupts": "step 1: the program raised KeyboardInterrupt",
    "unspeakable": "step 1: the program raised Unspeakable: .it cannot be shown.",
    "strange_text": "step 1: the program raised SystemExit",
    "backtracks": LATE,
    "counts": LATE,
    "large": "step 1: the program raised MemoryError",
    "stubborn": LATE,
    "long_winded": "step 1: what it asks for cannot be sent",
}
"""A pattern of what the answer of each bad program says."""

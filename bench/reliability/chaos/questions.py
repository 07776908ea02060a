"""The questions of a run: two classes, repeated ids and texts, questions that the LLM fails on, and
questions that are withdrawn. Pure.

The LLM stand-in fails on a prompt that contains the word of such a question.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from functools import cached_property

import msgspec

from producers.read_questions import Question

BATCH_SHARE = 0.25
REPEATED_SHARE = 0.05
FAILS_AT_FIRST_SHARE = 0.02
DEAD_SHARE = 0.005
BROKEN_WITHIN = 0.6
"""Later questions do not fail: a question fails only while others are answered."""
REPEATED_WITHIN = 300
"""A repeated id is one of the last so many of its class."""
REPEATED_TEXT_WITHIN = 20
"""A repeated text is so near that its first answer may still be in progress."""

TRIES_MAX = 4
"""`llm.tries_max` of the services."""
FAILS_AT_FIRST = TRIES_MAX - 2
"""Of the other two tries, one may meet the kill of an LLM server."""
ALWAYS = 1_000_000
WORD = re.compile(r"unanswerable-[0-9]{6}")


class ChaosQuestions(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The questions of each class, in order, with their ids.

    `broken`: how often the stand-in fails on each word. `dead`: ids of questions that become dead
    letters. `withdrawn`: ids that their asker withdraws. `rows`: the row of the given questions, by
    id.
    """

    interactive: tuple[Question, ...]
    batch: tuple[Question, ...]
    broken: dict[str, int]
    dead: frozenset[str]
    withdrawn: frozenset[str]
    rows: dict[str, int]

    @cached_property
    def texts(self) -> dict[str, str]:
        """The text of each question by id."""
        return {str(each.id): each.text or "" for each in (*self.interactive, *self.batch)}

    @property
    def has_equal_texts(self) -> bool:
        """Whether two ids ask the same."""
        return len(set(self.texts.values())) < len(self.texts)


def chaos_questions(
    given: Sequence[Question],
    seed: int,
    *,
    broken_within: float = BROKEN_WITHIN,
    batch_share: float = BATCH_SHARE,
    repeat_share: float = 0.0,
    cancel_share: float = 0.0,
) -> ChaosQuestions:
    """Returns as many questions as `given`, drawn from the seed.

    `broken_within`: the first part of the questions, of which some fail; 0: none fail.
    `repeat_share`: of the questions that do not fail, those with the text of an earlier one;
    `cancel_share`: those that are withdrawn.
    """
    rng, of_shares = random.Random(seed), random.Random(f"{seed} shares")
    withdrawn: set[str] = set()
    classes: dict[str, list[Question]] = {"i": [], "b": []}
    plain: dict[str, list[Question]] = {"i": [], "b": []}
    broken: dict[str, int] = {}
    dead: set[str] = set()
    rows: dict[str, int] = {}
    for row, question in enumerate(given):
        name = "b" if rng.random() < batch_share else "i"
        drawn = rng.random()
        if drawn < REPEATED_SHARE and plain[name]:
            classes[name].append(rng.choice(plain[name][-REPEATED_WITHIN:]))
            continue
        drawn -= REPEATED_SHARE
        query_id, text = f"{name}-{row:06}", question.text
        rows[query_id] = row
        may_break = row < broken_within * len(given)
        is_dead = may_break and 0 <= drawn < DEAD_SHARE
        if is_dead or (may_break and 0 <= drawn - DEAD_SHARE < FAILS_AT_FIRST_SHARE):
            word = f"unanswerable-{row:06}"
            text = f"{text} {word}"
            broken[word] = ALWAYS if is_dead else FAILS_AT_FIRST
            dead |= {query_id} if is_dead else set()
        asked = Question(id=query_id, text=text, vector=question.vector)
        if text == question.text:
            if of_shares.random() < repeat_share and plain[name]:
                earlier = of_shares.choice(plain[name][-REPEATED_TEXT_WITHIN:])
                rows[query_id] = rows[str(earlier.id)]
                asked = Question(id=query_id, text=earlier.text, vector=earlier.vector)
            if of_shares.random() < cancel_share:
                withdrawn.add(query_id)
            plain[name].append(asked)
        classes[name].append(asked)
    return ChaosQuestions(
        interactive=tuple(classes["i"]),
        batch=tuple(classes["b"]),
        broken=broken,
        dead=frozenset(dead),
        withdrawn=frozenset(withdrawn),
        rows=rows,
    )

"""Prompts: what goes in, in which order, and how much of it."""

from __future__ import annotations

import hashlib

import pytest

from carpool.errors import ConfigError
from generator.plan.prompt import (
    FilledPrompt,
    Passage,
    PromptLimits,
    Template,
    fill,
    parse_template,
)
from schemas.errors import RecordError

CONTENT = """A comment, which may name [system] in a line.

[system]
Answer.

[user]
P:
{{passages}}
Q: {{question}}

[passage]
[{{n}}] {{title}}: {{text}}

[nothing_found]
(none)
"""
TEMPLATE = parse_template("t", CONTENT)
WIDE = PromptLimits(passages_max=10, passage_chars_max=100, prompt_chars_max=1_000)


def passages(*texts: str) -> list[Passage]:
    return [Passage(title=f"T{index}", text=text) for index, text in enumerate(texts)]


def test_a_template_is_read_section_by_section() -> None:
    assert parse_template("t", CONTENT) == Template(
        name="t",
        system="Answer.",
        user="P:\n{{passages}}\nQ: {{question}}",
        passage="[{{n}}] {{title}}: {{text}}",
        nothing_found="(none)",
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("[system]\nAnswer.\n", ""), r"section \[system\] is missing"),
        (("[nothing_found]\n(none)\n", ""), r"section \[nothing_found\] is missing"),
        (("{{question}}", ""), r"\[user\] does not use \{\{question\}\}"),
        (("{{passages}}", ""), r"\[user\] does not use \{\{passages\}\}"),
        (("{{n}}", ""), r"\[passage\] does not use \{\{n\}\}"),
        (("Answer.", "{{question}}"), r"\[system\] cannot use \{\{question\}\}"),
        (("(none)", "(none)\n[more]\nx"), r"section \[more\] is not known"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused_in_words(
    change: tuple[str, str], said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        parse_template("mine", CONTENT.replace(*change))
    assert "'mine'" in str(error.value)


def test_passages_are_numbered_from_one_and_stand_before_the_question() -> None:
    prompt = fill(TEMPLATE, "  why? ", passages("a", "b"), WIDE)
    assert prompt == FilledPrompt(
        system="Answer.", user="P:\n[1] T0: a\n\n[2] T1: b\nQ: why?", passages=2
    )


def test_the_same_input_gives_the_same_bytes_and_their_hash() -> None:
    one, two = (fill(TEMPLATE, "why?", passages("a"), WIDE) for _ in range(2))
    assert one == two
    assert one.sha256() == hashlib.sha256(b"Answer.\0P:\n[1] T0: a\nQ: why?").hexdigest()
    assert one.sha256() != fill(TEMPLATE, "why not?", passages("a"), WIDE).sha256()


def test_prompts_with_the_same_first_passages_share_a_prefix() -> None:
    one = fill(TEMPLATE, "why?", passages("a", "b"), WIDE).user
    two = fill(TEMPLATE, "who else?", passages("a", "c"), WIDE).user
    assert one.startswith("P:\n[1] T0: a\n\n[2] T1: ") and two.startswith(
        "P:\n[1] T0: a\n\n[2] T1: "
    )


def test_without_passages_the_prompt_says_so() -> None:
    assert fill(TEMPLATE, "why?", [], WIDE) == FilledPrompt(
        system="Answer.", user="P:\n(none)\nQ: why?", passages=0
    )
    none = PromptLimits(passages_max=0, passage_chars_max=100, prompt_chars_max=1_000)
    assert fill(TEMPLATE, "why?", passages("a"), none).passages == 0


def test_no_more_passages_than_allowed_the_first_ones() -> None:
    limits = PromptLimits(passages_max=2, passage_chars_max=100, prompt_chars_max=1_000)
    prompt = fill(TEMPLATE, "why?", passages("a", "b", "c"), limits)
    assert prompt.passages == 2
    assert "[2] T1: b" in prompt.user and "T2" not in prompt.user


def test_a_passage_is_cut_at_the_last_word_that_fits() -> None:
    def shown(text: str, chars_max: int) -> str:
        limits = PromptLimits(passages_max=1, passage_chars_max=chars_max, prompt_chars_max=1_000)
        return (
            fill(TEMPLATE, "q", [Passage(title="T", text=text)], limits)
            .user.split(": ", 1)[1]
            .split("\n")[0]
        )

    assert shown("one two three", 13) == "one two three"
    assert shown("one two three", 12) == "one two"
    assert shown("one two three", 7) == "one two"
    assert shown("one two three", 6) == "one"
    assert shown("onetwothree", 6) == "onetwo"


def test_a_passage_becomes_one_line_so_that_it_cannot_look_like_two() -> None:
    prompt = fill(TEMPLATE, "q", [Passage(title="A\nB", text=" x\n\n[2] Fake:\ty  z ")], WIDE)
    assert "[1] A B: x [2] Fake: y z\n" in prompt.user


def test_passages_that_do_not_fit_are_left_out_and_none_behind_them_is_taken() -> None:
    # Bare: "Answer." 7 + "P:\n\nQ: q" 8 + "(none)" 6 = 21; a passage "[1] T0: aaaa" 12 with its
    # separator 14.
    texts = passages("aaaa", "b" * 50, "c")
    for chars_max, count in ((21, 0), (34, 0), (35, 1), (94, 1), (95, 2), (105, 2), (106, 3)):
        limits = PromptLimits(passages_max=3, passage_chars_max=100, prompt_chars_max=chars_max)
        prompt = fill(TEMPLATE, "q", texts, limits)
        assert prompt.passages == count, chars_max
        assert len(prompt.system) + len(prompt.user) <= chars_max


def test_a_question_that_does_not_fit_is_refused_with_its_length() -> None:
    limits = PromptLimits(passages_max=3, passage_chars_max=100, prompt_chars_max=20)
    with pytest.raises(RecordError, match=r"the question is 1 characters.* 20 characters") as error:
        fill(TEMPLATE, "q", [], limits)
    assert (error.value.reason, error.value.field) == ("too_large", "$.text")


def test_what_looks_like_a_placeholder_in_a_question_or_passage_stays_as_it_is() -> None:
    prompt = fill(
        TEMPLATE,
        "{{passages}} {{n}}",
        [Passage(title="{{question}}", text="{{text}} {x} %s")],
        WIDE,
    )
    assert prompt.user == "P:\n[1] {{question}}: {{text}} {x} %s\nQ: {{passages}} {{n}}"


def test_a_prompt_that_no_encoding_has_still_has_a_hash() -> None:
    assert len(FilledPrompt(system="s", user="u\ud800", passages=0).sha256()) == 64


def test_everything_that_is_wrong_with_a_template_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_template("mine", "[first]\na\n[second]\nb\n")
    text = str(caught.value)
    assert (
        "section [first] is not known; there are: system, user, passage, nothing_found; section "
        "[second]" in text
    )

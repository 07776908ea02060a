"""Token ids of prompts: equal to those of the whole chat, for the families of tokenizers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from carpool.testing.llm_tokens import SPECIAL, encode, render
from generator.llm.token_prompts import SAMPLE, CannotTokenize, PromptTokenizer
from generator.plan.prompt import FilledPrompt, fill, parse_template
from generator.prompts import load_templates
from generator.settings import GeneratorSettings
from tests.records import some_hits

GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How GPT-4, Llama 3 and Qwen cut a text before they make tokens of it."""
TEXTS = [*SAMPLE, "a.\n\n[1] b\n\n", "The end.\n\nQuestion: is it so?\n"] * 5
Encode = Callable[[str], list[int]]


def trained(family: str) -> Encode:
    """A small tokenizer of a family, trained here. As in the real ones, no token spans lines."""
    if family == "sentencepiece":
        model = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
        spaces = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        model.normalizer = normalizers.Sequence(spaces)
        model.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n+"), "isolated")
        more, alphabet = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))], []
    else:
        model = Tokenizer(models.BPE())
        more, alphabet = [], pre_tokenizers.ByteLevel.alphabet()
        cut = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=family == "gpt2")
        by_words = [pre_tokenizers.Split(Regex(GPT4), "isolated")] if family == "gpt4" else []
        model.pre_tokenizer = pre_tokenizers.Sequence([*by_words, cut])
    trainer = trainers.BpeTrainer(
        vocab_size=800,
        special_tokens=[*SPECIAL, *more],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    model.train_from_iterator(TEXTS, trainer)
    return lambda text: list(model.encode(text, add_special_tokens=False).ids)


def prompt_tokenizer(
    encode: Encode,
    render: Callable[[Sequence[Mapping[str, Any]]], str] = render,
    asked: Counter[str] | None = None,
    segments_max: int = 1_000,
) -> PromptTokenizer:
    """A `PromptTokenizer` of a server with this tokenizer and chat template."""

    async def tokenize(body: Mapping[str, Any]) -> list[int]:
        await asyncio.sleep(0)
        if asked is not None and "prompt" in body:
            asked[body["prompt"]] += 1
        return encode(body["prompt"] if "prompt" in body else render(body["messages"]))

    return PromptTokenizer(tokenize, segments_max=segments_max)


def whole(encode: Encode, prompt: FilledPrompt) -> tuple[int, ...]:
    messages = ({"role": "system", "content": prompt.system}, {"content": prompt.user})
    return tuple(encode(render(messages)))


def filled(question: str, texts: Sequence[str]) -> FilledPrompt:
    hits = [
        msgspec.structs.replace(hit, title=text[:20], text=text)
        for hit, text in zip(some_hits(len(texts)), texts, strict=True)
    ]
    template = load_templates(GeneratorSettings())["cited"]
    limits = {"passages_max": 5, "passage_chars_max": 300, "prompt_chars_max": 10_000}
    return fill(template, {"question": question, "passages": hits}, **limits)


ENCODERS = {family: trained(family) for family in ("gpt2", "gpt4", "sentencepiece")}
ENCODERS["stand-in"] = encode


@pytest.mark.parametrize("family", ENCODERS)
@given(
    question=st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=4),
)
def test_the_ids_of_a_prompt_are_those_of_its_whole_chat_and_begin_with_its_passages(
    family: str, question: str, texts: list[str]
) -> None:
    prompt, other = filled(question, texts), filled("Where? When?", [*texts, "one more"])
    tokenizer = prompt_tokenizer(ENCODERS[family])

    async def check() -> None:
        ids = await tokenizer.ids(prompt.system, prompt.segments)
        assert ids == whole(ENCODERS[family], prompt)
        lengths, begin = [], ids
        for passages in range(1, len(texts) + 1):
            begin = await tokenizer.prefix(prompt.system, prompt.segments[: 1 + passages])
            assert begin == ids[: len(begin)]
            lengths.append(len(begin))
        assert lengths == sorted(set(lengths)), "every passage adds to it"
        if texts:
            others = await tokenizer.ids(other.system, other.segments)
            assert others[: len(begin)] == begin, "another question has the same beginning"

    asyncio.run(check())


@pytest.mark.parametrize(
    ("user", "segments"),
    [
        ("{{question}}\n{{passages}}", ("", "why?\n", "[1]\n\n", "[2]")),
        ("A: {{passages}} {{question}}", ("", "A: [1]\n\n", "[2] why?")),
        ("A\n  {{passages}}\n\nQ: {{question}}!", ("", "A\n  [1]\n\n", "[2]\n\n", "Q: why?!")),
    ],
)
def test_a_template_is_cut_only_at_lines_that_begin_without_white_space(
    user: str, segments: tuple[str, ...]
) -> None:
    sections = f"[system]\ns\n[user]\n{user}\n[passage]\n[{{{{n}}}}]{{{{title}}}}{{{{text}}}}\n"
    template = parse_template("t", sections + "[nothing_found]\nnone")
    hits = [msgspec.structs.replace(hit, title="", text="") for hit in some_hits(2)]
    limits = {"passages_max": 5, "passage_chars_max": 300, "prompt_chars_max": 10_000}
    assert fill(template, {"question": "why?", "passages": hits}, **limits).segments == segments


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (lambda text: text.replace("“", '"'), "a sample are not those of the whole chat"),
        (lambda text: text.replace("Why?", "WHY?"), "the chat template changes"),
        (lambda text: "x", "the chat template changes"),
    ],
)
def test_a_chat_template_that_changes_texts_is_found_out(
    changed: Callable[[str], str], why: str
) -> None:
    tokenizer = prompt_tokenizer(encode, lambda messages: changed(render(messages)))
    with pytest.raises(CannotTokenize, match=why):
        asyncio.run(tokenizer.ids("s", ("P:\n", "a")))


def test_a_tokenizer_that_joins_text_across_lines_is_found_out() -> None:
    def by_pairs(text: str) -> list[int]:
        data = text.encode()
        return [int.from_bytes(data[place : place + 2], "big") for place in range(0, len(data), 2)]

    with pytest.raises(CannotTokenize):
        asyncio.run(prompt_tokenizer(by_pairs).ids("s", ("P:\n", "a\n", "b")))


def test_a_segment_is_asked_for_once_and_only_the_last_used_ones_are_kept() -> None:
    asked: Counter[str] = Counter()
    tokenizer = prompt_tokenizer(encode, asked=asked, segments_max=7)

    async def main() -> None:
        await asyncio.gather(*(tokenizer.ids("s", ("P:\n", "a\n", f"{n}?")) for n in range(5)))
        assert asked["\na\n["] == 1
        await tokenizer.ids("s", ("P:\n", "a\n", "5?"))
        await tokenizer.ids("s", ("P:\n", "a\n", "0?"))

    asyncio.run(main())
    assert asked["\na\n["] == 1, "it was used in every prompt"
    assert asked["\n0?"] == 2, "it was the one that was used longest ago"
    assert len(tokenizer._kept) == 7


def test_a_prompt_that_is_cancelled_leaves_its_segments_to_others() -> None:
    tokenizer = prompt_tokenizer(encode)

    async def main() -> None:
        await tokenizer.frame("s", "P:\n")
        first = asyncio.create_task(tokenizer.ids("s", ("P:\n", "a\n", "b?")))
        second = asyncio.create_task(tokenizer.ids("s", ("P:\n", "a\n", "b?")))
        for _ in range(3):
            await asyncio.sleep(0)
        assert tokenizer._asked
        first.cancel()
        assert await second == await tokenizer.ids("s", ("P:\n", "a\n", "b?"))
        assert first.cancelled()

    asyncio.run(main())

"""Prompts as token ids, which are equal where texts are. Their numbers come from characters."""

from __future__ import annotations

from collections.abc import Sequence

from bench.data.evaluation import EvaluationData, read_passages
from bench.papers.ragcache.streams import Ask
from bench.simulator.prompt_cache import RenderedPrompt
from generator.plan.cached_prefixes import blocks_of
from generator.settings import GeneratorSettings

CHARACTERS_A_TOKEN = 4.2
PASSAGE_TOKENS = 10
"""The number of a passage and the lines around it."""
SYSTEM_TOKENS, QUESTION_TOKENS = 56, 40
"""What is before the passages in every prompt, and what is behind them."""
IDS_A_TEXT = 1 << 20


def passage_tokens(data: EvaluationData) -> list[int]:
    """Returns the tokens of each passage in a prompt, from its characters."""
    chars_max = GeneratorSettings().passage_chars_max
    characters = (
        len(passage.title) + min(len(passage.text), chars_max)
        for passage in read_passages(data.corpus_path)
    )
    return [PASSAGE_TOKENS + round(count / CHARACTERS_A_TOKEN) for count in characters]


def rendered(ask: Ask, tokens: Sequence[int], block_tokens: int) -> RenderedPrompt:
    """Returns a prompt, its passages in the order of the scores. `tokens`: of each passage."""
    ids = list(range(SYSTEM_TOKENS))
    for row in ask.passages:
        first = (row + 1) * IDS_A_TEXT
        ids += range(first, first + tokens[row])
    first = -(ask.question + 1) * IDS_A_TEXT
    ids += range(first, first + QUESTION_TOKENS)
    return RenderedPrompt(token_ids=tuple(ids), blocks=blocks_of(ids, block_tokens))

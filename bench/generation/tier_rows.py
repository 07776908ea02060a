"""Simulates RAGCache's tree of passages with each policy: rows for one stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

import msgspec

from bench.generation.host_tier import PassageTokens, PassageTree
from bench.generation.simulation import Renderer, by_score
from bench.generation.streams import Ask, PromptIds, StreamName
from bench.generation.tree_policies import (
    TREE_POLICY_NAMES,
    PrefillProfile,
    TreePolicyName,
    make_policy,
)

HOST_TIMES = (0, 1, 4)
"""The memory of the host, as a multiple of the GPU's."""
PROFILE = PrefillProfile(
    cached=(0, 64, 256, 1024),
    computed=(32, 128, 512, 1024),
    times_ms=(
        (152.0, 402.1, 1604.8, 3391.5),
        (157.8, 402.2, 1580.1, 3623.8),
        (137.3, 391.0, 1547.7, 3545.2),
        (201.2, 469.1, 1860.1, 4225.0),
    ),
)
"""Prefill times for PGDSF: CPU time of SmolLM2-135M, float32, one thread, the least of 2 or 3."""


class TierRow(msgspec.Struct, frozen=True, kw_only=True):
    """A policy, and the shares of the prompt tokens that each tier had.

    `host_times`: the host's memory over the GPU's. `swapped_out_share`: tokens that were copied to
    the host, over all prompt tokens.
    """

    stream: StreamName
    policy: TreePolicyName
    host_times: int
    gpu_share: float
    host_share: float
    swapped_out_share: float

    @property
    def hit_share(self) -> float:
        """The share that was found in either tier."""
        return self.gpu_share + self.host_share


class TreePrompts(msgspec.Struct, frozen=True, kw_only=True):
    """A stream as the tree sees it: the head of all prompts, and passages and the rest of each."""

    head_tokens: int
    paths: tuple[tuple[PassageTokens, ...], ...]
    question_tokens: tuple[int, ...]


def tree_prompts(asks: Sequence[Ask], prompt_ids: PromptIds, renderer: Renderer) -> TreePrompts:
    """Returns the lengths of a stream's prompts, passages in the order of their scores."""
    ids = [renderer.token_ids(ask, by_score(ask)) for ask in asks]
    head = min(_shared(ids[0], other) for other in ids[1:])
    lengths = {row: prompt_ids.passage_tokens(row) for ask in asks for row in ask.passages}
    paths = tuple(
        tuple(PassageTokens(passage=row, tokens=lengths[row]) for row in ask.passages)
        for ask in asks
    )
    return TreePrompts(
        head_tokens=head,
        paths=paths,
        question_tokens=tuple(
            max(0, len(each) - head - sum(passage.tokens for passage in path))
            for each, path in zip(ids, paths, strict=True)
        ),
    )


def tier_rows(stream: StreamName, prompts: TreePrompts, gpu_tokens: int) -> Iterator[TierRow]:
    """Yields a row for each policy and size of the host's memory, as it is simulated."""
    for times in HOST_TIMES:
        for name in TREE_POLICY_NAMES:
            yield _row(stream, prompts, gpu_tokens, times, name)


def _row(
    stream: StreamName, prompts: TreePrompts, gpu_tokens: int, times: int, name: TreePolicyName
) -> TierRow:
    requests = [[each.passage for each in path] for path in prompts.paths]
    tree = PassageTree(
        make_policy(name, requests, PROFILE),
        head_tokens=prompts.head_tokens,
        gpu_tokens=gpu_tokens,
        host_tokens=times * gpu_tokens,
    )
    found = [
        tree.request(path, question)
        for path, question in zip(prompts.paths, prompts.question_tokens, strict=True)
    ]
    tree.check_integrity()
    tokens = sum(each.gpu + each.host + each.computed for each in found)
    return TierRow(
        stream=stream,
        policy=name,
        host_times=times,
        gpu_share=sum(each.gpu for each in found) / tokens,
        host_share=sum(each.host for each in found) / tokens,
        swapped_out_share=sum(each.swapped_out for each in found) / tokens,
    )


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))

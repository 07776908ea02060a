"""RAGCache's tree of passages over two tiers, in traces whose tokens are counted by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.generation.host_tier import PassageTokens, PassageTree, TreeTokens
from bench.generation.tree_policies import (
    TREE_POLICY_NAMES,
    PrefillProfile,
    TreeLfu,
    TreeLru,
    TreeOracle,
    TreePolicyName,
    make_policy,
)

HEAD, QUESTION, SIZE = 5, 3, 10
PROFILE = PrefillProfile((0, 100), (0, 100), ((0.0, 100.0), (50.0, 250.0)))


def tree(policy: object, *, gpu: int, host: int = 0) -> PassageTree:
    """A tree with room for so many passages beside the head."""
    return PassageTree(
        policy,  # type: ignore[arg-type]
        head_tokens=HEAD,
        gpu_tokens=HEAD + gpu * SIZE,
        host_tokens=host * SIZE,
    )


def ask(tree: PassageTree, passages: str) -> TreeTokens:
    path = [PassageTokens(passage=ord(each), tokens=SIZE) for each in passages]
    found = tree.request(path, QUESTION)
    tree.check_integrity()
    assert found.gpu + found.host + found.computed == HEAD + SIZE * len(passages) + QUESTION
    return found


def found(tree: PassageTree, *prompts: str) -> list[str]:
    """For each prompt how many passages were found on the GPU and on the host."""
    lines = []
    for prompt in prompts:
        tokens = ask(tree, prompt)
        lines.append(f"{tokens.gpu // SIZE}+{tokens.host // SIZE}")
    return lines


def test_the_head_is_cached_from_the_second_prompt_on() -> None:
    one = tree(TreeLru(), gpu=2)
    assert ask(one, "a") == TreeTokens(gpu=0, host=0, computed=18, swapped_out=0)
    assert ask(one, "b") == TreeTokens(gpu=5, host=0, computed=13, swapped_out=0)


def test_a_passage_is_found_only_behind_the_passages_it_stood_behind() -> None:
    assert found(tree(TreeLru(), gpu=9), "ab", "ab", "ac", "ba") == ["0+0", "2+0", "1+0", "0+0"]


def test_lru_evicts_leaves_first_and_the_one_unused_longest() -> None:
    assert found(tree(TreeLru(), gpu=3), "ab", "c", "d", "a", "c") == [
        *("0+0", "0+0", "0+0"),  # d takes the place of b, not of a, on which b stood
        *("1+0", "1+0"),
    ]


def test_lfu_keeps_what_many_prompts_had() -> None:
    assert found(tree(TreeLfu(), gpu=2), "a", "a", "b", "c", "a") == [
        *("0+0", "1+0", "0+0", "0+0", "1+0"),
    ]


def test_the_oracle_keeps_what_is_used_soonest() -> None:
    prompts = ["a", "b", "c", "b", "a"]
    oracle = TreeOracle([[ord(each) for each in prompt] for prompt in prompts])
    assert found(tree(oracle, gpu=2), *prompts) == ["0+0", "0+0", "0+0", "1+0", "0+0"]
    assert found(tree(TreeLru(), gpu=2), *prompts) == ["0+0", "0+0", "0+0", "1+0", "0+0"]
    prompts = ["a", "b", "c", "a", "a"]
    oracle = TreeOracle([[ord(each) for each in prompt] for prompt in prompts])
    assert found(tree(oracle, gpu=2), *prompts)[3] == "1+0"
    assert found(tree(TreeLru(), gpu=2), *prompts)[3] == "0+0"


def test_a_passage_is_swapped_out_to_the_host_only_once() -> None:
    one = tree(TreeLru(), gpu=1, host=2)
    swapped = [ask(one, prompt).swapped_out for prompt in ("a", "b", "a", "b", "a")]
    # a and b are copied when they first leave; then the copies are there.
    assert swapped == [0, SIZE, SIZE, 0, 0]
    assert found(one, "b", "a") == ["0+1", "0+1"]


def test_without_room_on_the_host_a_passage_is_freed() -> None:
    assert found(tree(TreeLru(), gpu=1), "a", "b", "a") == ["0+0", "0+0", "0+0"]
    assert found(tree(TreeLru(), gpu=1, host=1), "a", "b", "a") == ["0+0", "0+0", "0+1"]


def test_a_prompt_that_does_not_fit_the_gpu_is_cached_as_far_as_it_fits() -> None:
    assert found(tree(TreeLru(), gpu=2), "abc", "abc") == ["0+0", "2+0"]


def test_a_head_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        PassageTree(TreeLru(), head_tokens=6, gpu_tokens=5, host_tokens=0)


def test_times_between_measured_points_are_interpolated_in_both_directions() -> None:
    """RAGCache, Algorithm 1, lines 6 to 9."""
    assert PROFILE.time_ms(0, 50) == 50
    assert PROFILE.time_ms(50, 0) == 25
    assert PROFILE.time_ms(50, 100) == 175
    assert PROFILE.time_ms(50, 50) == 100
    assert PROFILE.time_ms(200, 100) == 400  # beyond the last point
    with pytest.raises(ValueError, match="rising"):
        PrefillProfile((0, 0), (0, 1), ((0, 0), (0, 0)))


def test_pgdsf_prefers_what_costs_more_for_each_token() -> None:
    """A passage behind a long cached prefix costs more to compute (RAGCache, section 5.1)."""
    policy = make_policy("pgdsf", (), PROFILE)
    one = tree(policy, gpu=3)
    ask(one, "a")
    ask(one, "ab")
    a = one._root.children[ord("a")]
    b = a.children[ord("b")]
    assert a.total_cost / a.times_computed == PROFILE.time_ms(0, 18) / 18
    assert b.total_cost / b.times_computed == PROFILE.time_ms(15, 13) / 13
    assert a.gpu_priority == 2 * a.total_cost


@given(
    st.sampled_from(TREE_POLICY_NAMES),
    st.integers(1, 6),
    st.integers(0, 6),
    st.lists(st.text("abcd", min_size=1, max_size=3), max_size=40),
)
@settings(max_examples=200, deadline=None)
def test_tiers_hold_what_they_may_whatever_is_asked(
    name: TreePolicyName, gpu: int, host: int, prompts: list[str]
) -> None:
    requests = [[ord(each) for each in prompt] for prompt in prompts]
    one = tree(make_policy(name, requests, PROFILE), gpu=gpu, host=host)
    seen: set[str] = set()
    for prompt in prompts:
        tokens = ask(one, prompt)
        known = max(n for n in range(len(prompt) + 1) if prompt[:n] in seen | {""})
        assert tokens.gpu + tokens.host <= HEAD + known * SIZE
        seen |= {prompt[:n] for n in range(1, len(prompt) + 1)}
    assert one.request([], QUESTION).swapped_out == 0

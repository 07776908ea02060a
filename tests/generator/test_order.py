"""Orders: what is next, given what the server has cached; and what no order may do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st

from generator.plan.cached_prefixes import CachedPrefixes
from generator.plan.kv_tree import BlocksRemoved, BlocksStored, KvBatch, KvTree, digests_of
from generator.plan.queue import OLDEST_EVERY, Prompt, PromptQueue, QueuedPrompt

BLOCK = 4


def seeing_tree() -> KvTree:
    """A tree of a server that has nothing cached; the size of its blocks is known."""
    tree = KvTree()
    stored = BlocksStored(names=(b"any",), parent=None, token_ids=(0,) * BLOCK)
    tree.step(KvBatch(seq=0, events=(stored, BlocksRemoved(names=(b"any",)))))
    return tree


def store(tree: KvTree, prefixes: CachedPrefixes, seq: int, token_ids: Sequence[int]) -> None:
    names = tuple(digests_of(token_ids, block_tokens=BLOCK))
    stored = BlocksStored(names=names, parent=None, token_ids=token_ids)
    prefixes.changed(tree.step(KvBatch(seq=seq, events=(stored,))))
    prefixes.check_integrity()


A, B, C = (1,) * 8, (2,) * 8, (3,) * 8


def takes_the_largest_ratio(order: Callable[[KvTree], CachedPrefixes]) -> None:
    """RAGCache, section 5.2, its two scenarios: more cached first, then less to compute first."""
    tree = seeing_tree()
    prefixes = order(tree)
    prefixes.add(1, (*A, *C))
    prefixes.add(2, (*B, *B, *C))
    prefixes.add(3, (*B, *B, 5))
    store(tree, prefixes, 1, A)
    assert prefixes.choose([1, 2, 3]) == 1
    store(tree, prefixes, 2, B + B)
    assert prefixes.choose([1, 2]) == 2, "more is cached"
    assert prefixes.choose([1, 2, 3]) == 3, "as much is cached, less to compute"


def test_cached_prefix_takes_the_largest_ratio_of_cached_to_computed_tokens() -> None:
    takes_the_largest_ratio(CachedPrefixes)


def test_a_blind_tree_and_prompts_whose_tokens_are_not_known_give_the_order_of_arrival() -> None:
    prefixes = CachedPrefixes(KvTree())
    for id in (1, 2):
        prefixes.add(id, A[: 9 - id])
    assert prefixes.choose([1, 2]) == 1
    assert CachedPrefixes(seeing_tree()).choose([4, 5]) == 4


def test_prompts_are_cut_anew_for_a_server_with_blocks_of_another_size() -> None:
    tree = KvTree()
    prefixes = CachedPrefixes(tree)
    prefixes.add(1, (*A, 5))
    for block_tokens in (4, 2):  # the second one was started anew
        names = digests_of(A, block_tokens=block_tokens)
        stored = BlocksStored(names=names, parent=None, token_ids=A)
        prefixes.changed(tree.step(KvBatch(seq=0, events=(stored,))))
        prefixes.check_integrity()
        assert prefixes.cached_tokens(1) == 8


def test_cached_prefix_begins_what_costs_least_for_each_prompt_that_uses_it() -> None:
    tree = seeing_tree()
    prefixes = CachedPrefixes(tree)
    prefixes.add(1, (*C, *C, 1))  # alone: 17 tokens
    prefixes.add(2, (*A, *B, 2))  # 17 tokens, of which 8 are those of 3 and 4 too
    prefixes.add(3, (*A, *C, 3))
    prefixes.add(4, (*A, *A, 4))
    assert prefixes.choose([1, 2, 3, 4]) == 2
    prefixes.add(5, (9, 9, 9, 9, 9))  # alone and short: 5 tokens, less than 17 / 1.9
    assert prefixes.choose([1, 2, 3, 4, 5]) == 5
    prefixes.remove(5)
    store(tree, prefixes, 1, A + B)
    prefixes.remove(2)
    assert prefixes.choose([1, 3, 4]) == 3, "what is cached goes first"
    prefixes.remove(3)
    prefixes.remove(4)
    assert prefixes.choose([1]) == 1


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "remove", "store", "evict", "ask"]),
            st.integers(0, 3),
            st.integers(0, 3),
            st.integers(0, 3),
        ),
        max_size=60,
    )
)
@example([("add", 0, 0, 0), ("store", 0, 0, 0), ("ask", 0, 0, 0), ("remove", 0, 0, 0)])
@settings(max_examples=300, deadline=None)
def test_the_books_agree_with_a_count_from_nothing(
    steps: list[tuple[str, int, int, int]],
) -> None:
    tree = seeing_tree()
    prefixes = CachedPrefixes(tree)
    ids: list[int] = []
    for seq, (what, first, second, third) in enumerate(steps, start=1):
        tokens = (*(first,) * 5, *(second,) * 4, *(third,) * 5)
        if what == "add":
            prefixes.add(seq, tokens)
            ids.append(seq)
        elif what == "remove" and ids:
            prefixes.remove(ids.pop(first % len(ids)))
        elif what == "evict":
            names = tuple(digests_of(tokens, block_tokens=BLOCK))[second:]
            prefixes.changed(
                tree.step(KvBatch(seq=tree._next_seq, events=(BlocksRemoved(names=names),)))
            )
        elif what == "store":
            store(tree, prefixes, tree._next_seq, tokens)
        elif ids:
            assert prefixes.choose(ids) in ids
        prefixes.check_integrity()


def check_order(prompt: Prompt, others: Collection[Prompt], *, by_arrival: bool) -> None:
    """Checks a prompt that is sent before others. `by_arrival`: no cache decides."""
    equal = [other for other in others if other.is_equal_to(prompt)]
    if by_arrival and not any(each.steps_done for each in (prompt, *equal)):
        assert all(prompt.urgency() < other.urgency() for other in others)
    assert all(other.urgency()[:2] >= prompt.urgency()[:2] for other in others)
    for other in equal:
        if other.tenant == prompt.tenant:
            is_first = not by_arrival or prompt.arrival() < other.arrival()
            assert prompt.steps_done > other.steps_done - is_first


class LastFirst(CachedPrefixes):
    def choose(self, ids: Sequence[int]) -> int:
        return ids[-1]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1),  # priority
            st.sampled_from("ab"),  # tenant
            st.sampled_from([None, None, None, 50, 90]),  # deadline
            st.integers(0, 2),  # prompts sent after it came
            st.integers(0, 3),  # finished steps of its workflow
        ),
        max_size=80,
    ),
    st.sampled_from([LastFirst, CachedPrefixes, None]),
)
@settings(max_examples=300, deadline=None)
def test_no_order_breaks_priorities_deadlines_or_turns_and_none_starves_a_prompt(
    arriving: list[tuple[int, str, int | None, int, int]], order: type[CachedPrefixes] | None
) -> None:
    caches = [] if order is None else [order(seeing_tree())]
    queue = PromptQueue(*caches)
    waiting: dict[int, Prompt] = {}
    sent_by: dict[int, int] = {}
    """By prompt: which of all prompts that are sent it is at the latest."""
    taken = 0

    def send() -> None:
        nonlocal taken
        queued = queue.take_next(now_us=0)
        if queued is None:
            assert not waiting
            return
        taken += 1
        prompt = waiting.pop(queued.prompt.id)
        assert taken <= sent_by[prompt.id]
        others = waiting.values()
        if taken % OLDEST_EVERY == 0:
            assert all(prompt.arrival() < other.arrival() for other in others)
            return
        check_order(prompt, others, by_arrival=order is None)

    for id, (priority, tenant, deadline, sends, steps_done) in enumerate(arriving):
        prompt = Prompt(
            id=id,
            arrival_us=id,
            priority=priority,
            tenant=tenant,
            deadline_us=deadline,
            steps_done=steps_done,
            token_ids=(*(tenant == "a",) * 9, id) if id % 3 else (),
        )
        waiting[id] = prompt
        sent_by[id] = taken + OLDEST_EVERY * len(waiting)
        queue.add(QueuedPrompt(prompt))
        for _ in range(sends):
            send()
    while waiting:
        send()
    for prefixes in caches:
        prefixes.check_integrity()
        assert not prefixes._blocks


def test_tenants_take_turns_however_many_prompts_one_of_them_has() -> None:
    prefixes = CachedPrefixes(seeing_tree())
    queue = PromptQueue(prefixes)
    for id in range(12):
        tenant = "few" if id in (8, 9, 10) else "many"
        found = (*A, *B, id) if tenant == "many" else tuple(range(50 * id, 50 * id + 40))
        queue.add(QueuedPrompt(Prompt(id=id, arrival_us=id, tenant=tenant, token_ids=found)))
    tenants = []
    while (queued := queue.take_next(now_us=0)) is not None:
        tenants.append(queued.prompt.tenant)
    assert tenants[:6] == ["many", "few"] * 3

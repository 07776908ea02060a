"""Orders: what is next, given what the server has cached; and what no order may do."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st

from generator.plan.kv_tree import BlocksRemoved, BlocksStored, KvBatch, KvTree, digests_of
from generator.plan.order.arrival import Arrival
from generator.plan.order.cached_prefix import CachedPrefix
from generator.plan.order.cached_prefixes import CachedPrefixes, PromptForm, form_of
from generator.plan.order.passage_orders import passage_orders
from generator.plan.order.protocol import NextPrompt, Order
from generator.plan.queue import Prompt, PromptQueue, QueuedPrompt, ServerCache

BLOCK = 4


def form(*token_ids: int, passages: tuple[int, ...] = (0,)) -> PromptForm:
    return form_of(passages, token_ids, BLOCK)


def seeing_tree() -> KvTree:
    tree = KvTree(block_tokens=BLOCK)
    tree.step(KvBatch(seq=0, events=()))
    return tree


def store(tree: KvTree, prefixes: CachedPrefixes, seq: int, token_ids: Sequence[int]) -> None:
    names = tuple(digests_of(token_ids, block_tokens=BLOCK))
    stored = BlocksStored(names=names, parent=None, token_ids=token_ids)
    prefixes.changed(tree.step(KvBatch(seq=seq, events=(stored,))))
    prefixes.check_integrity()


A, B, C = (1,) * 8, (2,) * 8, (3,) * 8


def test_cached_prefix_takes_the_largest_ratio_of_cached_to_computed_tokens() -> None:
    """RAGCache, section 5.2, its two scenarios: more cached first, then less to compute first."""
    tree = seeing_tree()
    prefixes = CachedPrefixes(tree)
    prefixes.add(1, [form(*A, *C)])
    prefixes.add(2, [form(*B, *B, *C)])
    prefixes.add(3, [form(*B, *B, 5)])
    store(tree, prefixes, 1, A)
    assert CachedPrefix(prefixes).choose([1, 2, 3]).id == 1
    store(tree, prefixes, 2, B + B)
    assert CachedPrefix(prefixes).choose([1, 2]).id == 2, "more is cached"
    assert CachedPrefix(prefixes).choose([1, 2, 3]).id == 3, "as much is cached, less to compute"


def test_the_form_is_sent_of_which_most_is_cached() -> None:
    tree = seeing_tree()
    prefixes = CachedPrefixes(tree)
    forms = [form(*A, *B, 9, passages=(0, 1)), form(*B, *A, 9, passages=(1, 0))]
    prefixes.add(1, forms)
    assert CachedPrefix(prefixes).choose([1]).form == forms[0], "nothing is cached: the preferred"
    store(tree, prefixes, 1, B)
    assert CachedPrefix(prefixes).choose([1]).form == forms[1]


def test_a_blind_tree_gives_the_order_of_arrival() -> None:
    prefixes = CachedPrefixes(KvTree(block_tokens=BLOCK))
    for id in (1, 2):
        prefixes.add(id, [form(*A[: 9 - id])])
    assert CachedPrefix(prefixes).choose([1, 2]).id == 1


def test_prompts_whose_tokens_are_not_known_go_in_the_order_of_arrival() -> None:
    assert CachedPrefix(CachedPrefixes(seeing_tree())).choose([4, 5]).id == 4


def test_cached_prefix_begins_what_costs_least_for_each_prompt_that_uses_it() -> None:
    tree = seeing_tree()
    prefixes = CachedPrefixes(tree)
    prefixes.add(1, [form(*C, *C, 1)])  # alone: 17 tokens
    prefixes.add(2, [form(*A, *B, 2)])  # 17 tokens, of which 8 are those of 3 and 4 too
    prefixes.add(3, [form(*A, *C, 3)])
    prefixes.add(4, [form(*A, *A, 4)])
    order = CachedPrefix(prefixes)
    assert order.choose([1, 2, 3, 4]).id == 2
    prefixes.add(5, [form(9, 9, 9, 9, 9)])  # alone and short: 5 tokens, less than 17 / 1.9
    assert order.choose([1, 2, 3, 4, 5]).id == 5
    prefixes.remove(5)
    store(tree, prefixes, 1, A + B)
    prefixes.remove(2)
    assert order.choose([1, 3, 4]).id == 3, "what is cached goes first"
    prefixes.remove(3)
    prefixes.remove(4)
    assert order.choose([1]).id == 1


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
            other = (*(second,) * 5, *(first,) * 4, *(third,) * 5)
            prefixes.add(seq, [form(*tokens), form(*other, passages=(1,))])
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
            assert CachedPrefix(prefixes).choose(ids).id in ids
        prefixes.check_integrity()


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=5).map(lambda s: sorted(s, reverse=True)),
    st.floats(0, 1),
)
@settings(max_examples=200, deadline=None)
def test_passages_change_places_only_within_the_loss_of_score(
    scores: list[float], loss_max: float
) -> None:
    def loss(order: tuple[int, ...]) -> float:
        pairs = itertools.combinations(order, 2)
        return max((scores[after] - scores[before] for before, after in pairs), default=0.0)

    dumb = [
        order for order in itertools.permutations(range(len(scores))) if loss(order) <= loss_max
    ]
    assert list(passage_orders(scores, score_loss_max=loss_max, orders_max=999)) == dumb
    assert list(passage_orders(scores, score_loss_max=loss_max, orders_max=3)) == dumb[:3]
    assert dumb[0] == tuple(range(len(scores)))


class Perverse:
    """An order that always takes who came last."""

    def choose(self, ids: Sequence[int]) -> NextPrompt:
        return NextPrompt(id=ids[-1])


Arriving = tuple[int, str, int | None, int]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1),  # priority
            st.sampled_from("ab"),  # tenant
            st.sampled_from([None, None, None, 50, 90]),  # deadline
            st.integers(0, 2),  # prompts sent after it came
        ),
        max_size=80,
    ),
    st.integers(0, 5),
    st.sampled_from(["perverse", "cached_prefix", "arrival"]),
)
@settings(max_examples=400, deadline=None)
def test_no_order_breaks_priorities_deadlines_turns_or_the_bound_of_overtaking(
    arriving: list[Arriving], overtaken_max: int, name: str
) -> None:
    prefixes = CachedPrefixes(seeing_tree())
    policies: dict[str, Order] = {
        "perverse": Perverse(),
        "cached_prefix": CachedPrefix(prefixes),
        "arrival": Arrival(),
    }
    cache = ServerCache(prefixes=prefixes, order=policies[name])
    queue = PromptQueue(cache, overtaken_max=overtaken_max)
    waiting: dict[int, Prompt] = {}
    overtaken: dict[int, int] = {}
    taken_of: list[tuple[frozenset[str], str]] = []
    taken = 0

    def send() -> None:
        nonlocal taken
        queued = queue.take_next(now_us=0)
        if queued is None:
            assert not waiting
            return
        taken += 1
        prompt = waiting.pop(queued.prompt.id)
        if taken % 16 == 0 and all(
            prompt.arrival() < other.arrival() for other in waiting.values()
        ):
            return  # who waited longest, whatever its priority
        for other in waiting.values():
            assert other.urgency()[:3] >= prompt.urgency()[:3], "priority, then deadline"
        equal = [other for other in waiting.values() if other.is_equal_to(prompt)]
        taken_of.append((frozenset(other.tenant for other in equal), prompt.tenant))
        for other in equal:
            if other.tenant == prompt.tenant and other.arrival() < prompt.arrival():
                overtaken[other.id] = overtaken.get(other.id, 0) + 1
                assert overtaken[other.id] <= overtaken_max

    for id, (priority, tenant, deadline, sends) in enumerate(arriving):
        forms = (form(*(tenant == "a",) * 9, id),) if id % 3 else ()
        prompt = Prompt(
            id=id,
            arrival_us=id,
            priority=priority,
            tenant=tenant,
            deadline_us=deadline,
            forms=forms,
        )
        waiting[id] = prompt
        queue.add(QueuedPrompt(prompt))
        for _ in range(sends):
            send()
    while waiting:
        send()
    prefixes.check_integrity()
    assert len(prefixes) == 0


def test_tenants_take_turns_however_many_prompts_one_of_them_has() -> None:
    prefixes = CachedPrefixes(seeing_tree())
    queue = PromptQueue(ServerCache(prefixes=prefixes, order=CachedPrefix(prefixes)))
    for id in range(12):
        tenant = "few" if id in (8, 9, 10) else "many"
        forms = (form(*A, *B, id),) if tenant == "many" else (form(*range(50 * id, 50 * id + 40)),)
        queue.add(QueuedPrompt(Prompt(id=id, arrival_us=id, tenant=tenant, forms=forms)))
    tenants = []
    while (queued := queue.take_next(now_us=0)) is not None:
        tenants.append(queued.prompt.tenant)
    assert tenants[:6] == ["many", "few"] * 3


def test_forms_that_become_known_while_a_prompt_waits_count() -> None:
    tree = seeing_tree()
    prefixes = CachedPrefixes(tree)
    queue = PromptQueue(ServerCache(prefixes=prefixes, order=CachedPrefix(prefixes)))
    for id in (1, 2):
        queue.add(QueuedPrompt(Prompt(id=id, arrival_us=id)))
    queue.set_forms(2, [form(*A, 5)])
    store(tree, prefixes, 1, A)
    queued = queue.take_next(now_us=0)
    assert queued is not None
    assert queued.prompt.id == 2
    assert queued.form is not None
    queue.add(queued)
    again = queue.take_next(now_us=0)
    assert again is not None
    assert again.prompt.id == 2, "a prompt that was refused keeps its forms"

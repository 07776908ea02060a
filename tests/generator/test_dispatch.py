"""The dispatcher: order, deadlines, revocation, and that each query ends once.

Commands of its transcripts: `new` begins with another dispatcher, `open` with one whose servers
have passed a check. `TIME EVENT [ids] [option=value]` is one step at TIME, in microseconds. Its
output is the actions, and the state after the step. With several servers, `server=` says which one,
and an action ends with its server.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from generator.plan.cached_prefixes import blocks_of
from generator.plan.dispatch import Dispatcher, DispatchLimits, OrderName
from generator.plan.dispatch_events import (
    CacheChanged,
    CancelRequest,
    CheckPassed,
    CheckServer,
    ConcurrencyChanged,
    DeliverAnswer,
    DispatchAction,
    DispatchEvent,
    ExpireQuery,
    GiveUpQuery,
    PromptArrived,
    PromptHastened,
    PromptsRevoked,
    PromptTokenized,
    ReplayCache,
    RequestAccepted,
    RequestEnded,
    RequestRefused,
    SendPrompt,
    TimePassed,
)
from generator.plan.kv_tree import BlocksStored, KvBatch
from generator.plan.queue import Prompt
from tests.transcripts import Execute

LIMITS = DispatchLimits(
    concurrency=2,
    prompts_max=5,
    backoff_us_min=100,
    backoff_us_max=1_000,
    retry_after_us_max=5_000,
    tries_max=3,
)


class DispatchTranscript:
    """Executes the commands of one transcript."""

    def execute(self, command: str) -> list[str]:
        """Returns the actions of a command, one a line, and the state."""
        first, *words = command.split()
        options = {
            name: int(value) for name, _, value in (word.partition("=") for word in words) if value
        }
        if first == "new":
            self.dispatcher = new_dispatcher(**options)
            return []
        if first == "open":
            self.dispatcher = open_dispatcher(**options)
            return []
        kind, *arguments = (word for word in words if "=" not in word)
        ids = [int(argument) for argument in arguments if argument.isdigit()]
        now_us = int(first)
        output = []
        for event in _events(kind, ids, options, "suspect" in arguments, now_us):
            actions = self.dispatcher.step(event, now_us)
            self.dispatcher.check_integrity()
            output += [self._line(action) for action in actions]
        return [*output, self._state()]

    def _line(self, action: DispatchAction) -> str:
        shown = [name for name in action.__slots__ if name not in ("server", "form")]
        if isinstance(action, SendPrompt | CheckServer) and self.dispatcher.servers > 1:
            shown.append("server")
        return " ".join([type(action).__name__, *(str(getattr(action, name)) for name in shown)])

    def _state(self) -> str:
        one = self.dispatcher
        states = "/".join(one.health(server).state for server in range(one.servers))
        return (
            f"{states}: {one.prompts} prompts, {one.in_flight} in flight, "
            f"credit {one.credit()}, wakes at {one.wake_us()}"
        )


def _events(
    kind: str, ids: list[int], options: dict[str, int], suspect: bool, now_us: int
) -> list[DispatchEvent]:
    match kind:
        case "arrive":
            prompts = (Prompt(id=id, arrival_us=now_us, **options) for id in ids)
            return [PromptArrived(prompt=prompt) for prompt in prompts]
        case "accept":
            return [RequestAccepted(id=id) for id in ids]
        case "end":
            return [RequestEnded(id=id) for id in ids]
        case "refuse":
            options = {"server": 0, **options}
            return [RequestRefused(id=id, suspect=suspect, **options) for id in ids or [None]]
        case "pass":
            return [CheckPassed(server=options.get("server", 0))]
        case "limit":
            return [ConcurrencyChanged(server=0, **options)]
        case "revoke":
            return [PromptsRevoked(ids=frozenset(ids))]
        case "wait":
            return [TimePassed()]
    raise ValueError(f"no event {kind!r}")


TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("dispatch_*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_dispatch_transcript(path: Path, check_transcript: Callable[[Path, Execute], None]) -> None:
    check_transcript(path, DispatchTranscript().execute)


def new_dispatcher(
    *, servers: int = 1, order: OrderName | None = None, **limits: int
) -> Dispatcher:
    return Dispatcher(replace(LIMITS, **limits), servers=servers, order=order)


def open_dispatcher(
    *, servers: int = 1, order: OrderName | None = None, **limits: int
) -> Dispatcher:
    """A dispatcher without prompts, whose servers have passed a check."""
    dispatcher = new_dispatcher(servers=servers, order=order, **limits)
    dispatcher.step(TimePassed(), 0)
    for server in range(servers):
        dispatcher.step(CheckPassed(server=server), 0)
    return dispatcher


def sent_by(actions: tuple[DispatchAction, ...]) -> list[int]:
    return [action.id for action in actions if isinstance(action, SendPrompt)]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "arrive",
                "accept",
                "end",
                "refuse",
                "suspect",
                "lost",
                "store",
                "limit",
                "check",
                "check_refused",
                "revoke",
                "tick",
            ]
        ),
        st.integers(0, 5),
        st.integers(0, 400),
    ),
    max_size=120,
)


BLOCK = 4
ORDERS: tuple[OrderName, ...] = get_args(OrderName)
PROMPTS = ((1,) * 9, (*(1,) * 4, *(2,) * 8))
BLOCKS = tuple(blocks_of(ids, BLOCK) for ids in PROMPTS)
STORED = tuple(
    BlocksStored(names=blocks.digests, parent=None, token_ids=ids[: BLOCK * len(blocks.digests)])
    for blocks, ids in zip(BLOCKS, PROMPTS, strict=True)
)


class Accounts:
    """Follows the actions alone, without knowing how they were decided."""

    def __init__(self) -> None:
        self.waiting: dict[int, Prompt] = {}
        self.running: dict[int, Prompt] = {}
        self.attempts: dict[int, int] = {}
        self.terminal: dict[int, str] = {}
        self.revoked: set[int] = set()
        self.server_of: dict[int, int] = {}
        self.checked: set[int] = set()
        """Servers with a check that is out."""
        self.limits: list[int] = []
        self.next_seqs: list[int] = []
        self.cancelled_now: list[int] = []

    def running_at(self, server: int) -> int:
        return sum(self.server_of[id] == server for id in self.running)

    def note(self, event: DispatchEvent, now_us: int) -> None:
        """Notes an event. The dispatcher expires what is late, whatever the event says of it."""
        match event:
            case PromptArrived(prompt=prompt):
                self.waiting[prompt.id] = prompt
            case RequestRefused(id=None, server=server) | CheckPassed(server=server):
                self.checked.remove(server)
            case ConcurrencyChanged(server=server, concurrency=concurrency):
                self.limits[server] = concurrency
            case RequestRefused(id=id) if id is not None and not self.running[id].is_late(now_us):
                self.waiting[id] = self.running.pop(id)
            case PromptsRevoked(ids=ids):
                gone = {
                    id
                    for id in ids
                    if not (self.waiting.get(id) or self.running[id]).is_late(now_us)
                }
                self.revoked |= gone
                for id in gone:
                    self.waiting.pop(id, None)
                    self.running.pop(id, None)

    def follow(
        self, actions: tuple[DispatchAction, ...], limits: DispatchLimits, now_us: int
    ) -> None:
        for action in actions:
            match action:
                case SendPrompt(id=id, attempt=attempt, server=server):
                    self.running[id] = self.waiting.pop(id)
                    self.server_of[id] = server
                    self.attempts[id] = self.attempts.get(id, 0) + 1
                    assert attempt == self.attempts[id]
                    assert self.running_at(server) <= self.limits[server]
                case CheckServer(server=server):
                    assert server not in self.checked
                    self.checked.add(server)
                case CancelRequest(id=id):
                    self.cancelled_now.append(id)
                case ExpireQuery(id=id):
                    prompt = self.running.pop(id, None) or self.waiting.pop(id)
                    assert prompt.is_late(now_us)
                    self.end(id, "expired")
                case GiveUpQuery(id=id):
                    self.waiting.pop(id)
                    assert self.attempts[id] >= limits.tries_max
                    self.end(id, "failed")
                case DeliverAnswer(id=id):
                    self.running.pop(id)
                    self.end(id, "answered")

    def end(self, id: int, how: str) -> None:
        assert id not in self.terminal and id not in self.revoked, (
            "a query ends once, and not after it was revoked"
        )
        self.terminal[id] = how


def event_of(
    kind: str, number: int, accounts: Accounts, next_id: int, now_us: int
) -> DispatchEvent | None:
    running = sorted(accounts.running)
    chosen = running[number % len(running)] if running else None
    match kind:
        case "arrive":
            deadline_us = now_us + 300 * number if number > 2 else None
            return PromptArrived(
                prompt=Prompt(
                    id=next_id,
                    arrival_us=now_us,
                    priority=number % 2,
                    deadline_us=deadline_us,
                    blocks=BLOCKS[next_id % 2],
                )
            )
        case "check" if accounts.checked:
            return CheckPassed(server=min(accounts.checked))
        case "check_refused" if accounts.checked:
            return RequestRefused(id=None, server=max(accounts.checked))
        case "limit":
            server = number % len(accounts.limits)
            return ConcurrencyChanged(server=server, concurrency=1 + number)
        case "store":
            server = number % len(accounts.limits)
            accounts.next_seqs[server] += 1
            batch = KvBatch(seq=accounts.next_seqs[server] - 1, events=(STORED[number % 2],))
            return CacheChanged(server=server, event=batch)
        case "revoke":
            return PromptsRevoked(
                ids=frozenset(sorted({*accounts.waiting, *accounts.running})[: number % 3])
            )
        case "tick":
            return TimePassed()
        case "accept" | "end" | "refuse" | "suspect" | "lost" if chosen is not None:
            server = accounts.server_of[chosen]
            if kind == "lost":
                accounts.next_seqs[server] = 0  # it was started anew
            return {
                "accept": RequestAccepted(id=chosen),
                "end": RequestEnded(id=chosen),
                "refuse": RequestRefused(id=chosen, server=server, retry_after_us=number * 50),
                "suspect": RequestRefused(id=chosen, server=server, suspect=True),
                "lost": RequestRefused(id=chosen, server=server, is_lost=True),
            }[kind]
        case _:
            return None


# ---- against a plain bookkeeper, over random histories


@given(STEPS, st.integers(1, 3), st.sampled_from([None, *ORDERS]))
def test_over_any_history_each_query_ends_once_or_is_still_there(
    steps: list[tuple[str, int, int]], servers: int, order: OrderName | None
) -> None:
    limits = replace(LIMITS, tries_max=2)
    dispatcher, accounts = Dispatcher(limits, servers=servers, order=order), Accounts()
    accounts.limits, accounts.next_seqs = [limits.concurrency] * servers, [0] * servers
    now_us, next_id = 0, 0
    for kind, number, wait_us in steps:
        now_us += wait_us
        event = event_of(kind, number, accounts, next_id, now_us)
        if event is None:
            continue
        open_before = [one for one in range(servers) if dispatcher.health(one).state == "open"]
        accounts.cancelled_now = []
        was_running = dict(accounts.running)
        next_id += isinstance(event, PromptArrived)
        accounts.note(event, now_us)
        actions = dispatcher.step(event, now_us)
        accounts.follow(actions, limits, now_us)
        dispatcher.check_integrity()
        assert (
            dispatcher.prompts
            == len(accounts.waiting) + len(accounts.running)
            == next_id - len(accounts.terminal) - len(accounts.revoked)
        )
        assert dispatcher.in_flight == len(accounts.running)
        for id in accounts.cancelled_now:
            assert id in was_running and id not in accounts.running
        sent_to = [action.server for action in actions if isinstance(action, SendPrompt)]
        for server in range(servers):
            state = dispatcher.health(server).state
            if server not in open_before and state != "open":
                assert sent_to.count(server) <= 1, "only a probe is sent to a server that refused"
            assert state != "paused" or server not in sent_to
        assert dispatcher.is_open or dispatcher.credit() == 0
        if isinstance(event, RequestRefused) and event.is_lost and order is not None:
            tree = dispatcher.tree(event.server)
            assert tree is not None and tree.is_blind and len(tree) == 0
        wake_us = dispatcher.wake_us()
        assert wake_us is None or wake_us > now_us, "what is due was done"


def test_a_hastened_prompt_is_sent_as_soon_as_its_most_urgent_follower_and_expires_as_before() -> (
    None
):
    dispatcher = open_dispatcher(concurrency=1, prompts_max=100)
    for id, priority, deadline_us in ((0, 0, None), (1, 0, None), (2, 5, 900), (3, 5, None)):
        prompt = Prompt(id=id, arrival_us=id, priority=priority, deadline_us=deadline_us)
        dispatcher.step(PromptArrived(prompt=prompt), id)
    for id, priority, deadline_us in ((3, 0, 700), (2, 0, None), (9, 0, None)):
        event = PromptHastened(id=id, priority=priority, deadline_us=deadline_us)
        assert dispatcher.step(event, 10) == ()
        dispatcher.check_integrity()
    assert sent_by(dispatcher.step(RequestEnded(id=0), 20)) == [3], "by a follower's deadline"
    assert dispatcher.wake_us() == 900, "it does not expire with its follower"
    assert sent_by(dispatcher.step(RequestEnded(id=3), 800)) == [2], "before one without a deadline"
    actions = dispatcher.step(TimePassed(), 900)
    assert ExpireQuery(id=2) in actions
    assert sent_by(actions) == [1]


# ---- several servers that say what they have cached


def caching_dispatcher(order: OrderName, **limits: int) -> Dispatcher:
    """Two open servers; the first has the first prompt cached, the second the other one."""
    dispatcher = open_dispatcher(servers=2, order=order, prompts_max=20, **limits)
    for server in range(2):
        batch = KvBatch(seq=0, events=(STORED[server],))
        assert dispatcher.step(CacheChanged(server=server, event=batch), 0) == ()
    return dispatcher


def arrive(dispatcher: Dispatcher, id: int, prompt: int) -> list[SendPrompt]:
    event = PromptArrived(prompt=Prompt(id=id, arrival_us=id, blocks=BLOCKS[prompt]))
    actions = dispatcher.step(event, 1)
    dispatcher.check_integrity()
    return [action for action in actions if isinstance(action, SendPrompt)]


@pytest.mark.parametrize("order", ORDERS)
def test_a_prompt_goes_to_the_server_that_has_most_of_it_cached(order: OrderName) -> None:
    dispatcher = caching_dispatcher(order, concurrency=8)
    (sent,) = arrive(dispatcher, 1, prompt=1)
    assert sent.server == 1
    (sent,) = arrive(dispatcher, 2, prompt=0)
    assert sent.server == 0


def test_a_server_with_more_than_its_share_of_the_work_gives_prompts_to_others() -> None:
    dispatcher = caching_dispatcher("arrival", concurrency=8)
    servers = [sent.server for id in range(6) for sent in arrive(dispatcher, id, prompt=1)]
    assert servers == [1, 1, 0, 1, 0, 1], "server 1 has at most two requests more"


def test_each_server_that_becomes_free_takes_what_it_has_most_of() -> None:
    dispatcher = caching_dispatcher("cached_prefix", concurrency=1)
    for id in (1, 2):
        arrive(dispatcher, id, prompt=0)
    for id in (3, 4, 5):
        assert arrive(dispatcher, id, prompt=id % 2) == []
    for ended, next_id, server in ((2, 3, 1), (1, 4, 0), (3, 5, 1)):
        (sent,) = [
            action
            for action in dispatcher.step(RequestEnded(id=ended), 9)
            if isinstance(action, SendPrompt)
        ]
        assert (sent.id, sent.server) == (next_id, server)


def test_a_lost_server_loses_its_credit_at_once_and_the_other_keeps_its_own() -> None:
    dispatcher = caching_dispatcher("arrival", concurrency=8)
    (sent,) = arrive(dispatcher, 1, prompt=1)
    actions = dispatcher.step(RequestRefused(id=1, server=1, is_lost=True), 2)
    assert actions == (SendPrompt(id=1, attempt=2, server=0),)
    lost, kept = dispatcher.tree(1), dispatcher.tree(0)
    assert lost is not None and lost.is_blind and len(lost) == 0
    assert kept is not None and len(kept) == 2
    dispatcher.step(TimePassed(), 102)
    dispatcher.step(CheckPassed(server=1), 102)
    (sent,) = arrive(dispatcher, 2, prompt=1)
    assert sent.server == 0, "server 0 has a block of the prompt"


def test_a_warm_up_goes_to_an_open_server_with_a_place_that_has_most_cached() -> None:
    dispatcher = caching_dispatcher("arrival", concurrency=2)
    warm = [dispatcher.server_to_warm(blocks.digests, (0, 0)) for blocks in BLOCKS]
    assert warm == [0, 1]
    assert [dispatcher.server_to_warm((), each) for each in ((0, 0), (1, 0), (0, 1))] == [0, 1, 0]
    assert dispatcher.server_to_warm(BLOCKS[1].digests, (0, 2)) == 0, "the other one is full"
    (sent,) = arrive(dispatcher, 1, prompt=1)
    assert sent.server == 1
    assert dispatcher.server_to_warm((), (0, 0)) == 0, "the other one has a prompt"
    dispatcher.step(RequestRefused(id=1, server=1), 2)
    assert dispatcher.server_to_warm(BLOCKS[1].digests, (0, 0)) == 0, "the other one is not open"


def test_a_prompt_with_unknown_blocks_goes_to_the_server_that_was_warmed_for_it() -> None:
    dispatcher = caching_dispatcher("cached_prefix", concurrency=8)
    servers = []
    for id in range(4):
        prompt = Prompt(id=id, arrival_us=id, warmed_at=1)
        (sent,) = dispatcher.step(PromptArrived(prompt=prompt), 1)
        assert isinstance(sent, SendPrompt)
        servers.append(sent.server)
    assert servers == [1, 1, 0, 1], "not where it has more than its share of the work"


def test_a_gap_in_a_servers_events_asks_for_a_replay() -> None:
    dispatcher = caching_dispatcher("cached_prefix")
    event = CacheChanged(server=1, event=KvBatch(seq=5, events=()))
    assert dispatcher.step(event, 1) == (ReplayCache(server=1, replay_from=1),)


def test_blocks_that_become_known_later_count_also_after_a_refusal() -> None:
    dispatcher = caching_dispatcher("arrival", concurrency=1)
    for id in (1, 2):
        dispatcher.step(PromptArrived(prompt=Prompt(id=id, arrival_us=id)), 1)
    dispatcher.step(PromptTokenized(id=1, blocks=BLOCKS[0]), 1)
    dispatcher.step(RequestRefused(id=1, server=0), 1)
    actions = dispatcher.step(RequestEnded(id=2), 1)
    assert SendPrompt(id=1, attempt=2, server=1) in actions


def test_what_was_expected_of_the_cache_is_compared_with_the_answer() -> None:
    dispatcher = caching_dispatcher("arrival")
    arrive(dispatcher, 1, prompt=0)
    arrive(dispatcher, 2, prompt=1)
    dispatcher.step(RequestEnded(id=1, cached_tokens=8), 2)
    dispatcher.step(RequestEnded(id=2, cached_tokens=4), 2)
    trees = [dispatcher.tree(server) for server in range(2)]
    assert [tree and (tree.checked, tree.disagreed) for tree in trees] == [(1, 0), (1, 1)]

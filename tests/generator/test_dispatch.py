"""The dispatcher: order, deadlines, revocation, and that each query ends once.

Commands of its transcripts: `new` begins with another dispatcher, `open` with one whose servers
have passed a check. `TIME EVENT [ids] [option=value]` is one step at TIME, in microseconds. Its
output is the actions, and the state after the step. With several servers, `server=` says which one,
and an action ends with its server.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from generator.plan import dispatch, health, refusals
from generator.plan.concurrency import next_concurrency
from generator.plan.dispatch import Dispatcher
from generator.plan.dispatch_events import (
    CacheChanged,
    CancelRequest,
    DispatchAction,
    DispatchEvent,
    EndQuery,
    LoadSeen,
    ProbePassed,
    ProbeServer,
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
from generator.plan.kv_tree import BlocksStored, KvBatch, digests_of
from generator.plan.queue import OLDEST_EVERY, Prompt
from generator.plan.refusals import RefusedAs
from schemas.topics import BATCH_PRIORITY
from tests.transcripts import Execute

KINDS = get_args(RefusedAs)
LIMITS = {"concurrency": 2, "prompts_max": 5, "tries_max": 3, "later_us_max": 10_000}


@pytest.fixture(autouse=True)
def short_pauses(quick_pauses: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "BACKOFF_US_MIN", 100)
    monkeypatch.setattr(health, "BACKOFF_US_MAX", 1_000)
    monkeypatch.setattr(dispatch, "RETRY_AFTER_US_MAX", 5_000)
    monkeypatch.setattr(refusals, "PAUSE_US_MIN", 100)
    monkeypatch.setattr(refusals, "PAUSE_US_MAX", 10_000)


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
        if "digest" in options:
            options["digest"] = str(options["digest"])  # type: ignore[assignment]
        kind, *arguments = (word for word in words if "=" not in word)
        ids = [int(argument) for argument in arguments if argument.isdigit()]
        now_us = int(first)
        output = []
        for event in _events(kind, ids, options, arguments, now_us):
            actions = self.dispatcher.step(event, now_us)
            self.dispatcher.check_integrity()
            output += [self._line(action) for action in actions]
        return [*output, self._state()]

    def _line(self, action: DispatchAction) -> str:
        hidden = ["server", "form"]
        if isinstance(action, EndQuery) and action.text_of is None:
            hidden.append("text_of")
        shown = [name for name in action.__slots__ if name not in hidden]
        if isinstance(action, SendPrompt | ProbeServer) and len(self.dispatcher.servers) > 1:
            shown.append("server")
        return " ".join([type(action).__name__, *(str(getattr(action, name)) for name in shown)])

    def _state(self) -> str:
        one = self.dispatcher
        states = "/".join(server.state for server in one.servers)
        return (
            f"{states}: {one.prompts} prompts, {one.in_flight} in flight, "
            f"credit {one.credit()}, wakes at {one.wake_us()}"
        )


def _events(
    kind: str, ids: list[int], options: dict[str, Any], words: Sequence[str], now_us: int
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
            options = {"server": 0, **options, "is_paid": "paid" in words}
            options["refused_as"] = next((one for one in words if one in KINDS), "later")
            return [RequestRefused(id=id, **options) for id in ids or [None]]
        case "pass":
            return [ProbePassed(server=options.get("server", 0))]
        case "load":
            return [LoadSeen(server=0, **options)]
        case "revoke":
            return [PromptsRevoked(ids=frozenset(ids))]
        case "hasten":
            return [PromptHastened(id=id, deadline_us=None, **options) for id in ids]
        case "wait":
            return [TimePassed()]
    raise ValueError(f"no event {kind!r}")


TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("dispatch_*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_dispatch_transcript(path: Path, check_transcript: Callable[[Path, Execute], None]) -> None:
    check_transcript(path, DispatchTranscript().execute)


def new_dispatcher(*, servers: int = 1, follows_caches: bool = False, **limits: int) -> Dispatcher:
    return Dispatcher(**LIMITS | limits, servers=servers, follows_caches=follows_caches)


def open_dispatcher(*, servers: int = 1, follows_caches: bool = False, **limits: int) -> Dispatcher:
    """A dispatcher without prompts, whose servers have passed a check."""
    dispatcher = new_dispatcher(servers=servers, follows_caches=follows_caches, **limits)
    dispatcher.step(TimePassed(), 0)
    for server in range(servers):
        dispatcher.step(ProbePassed(server=server), 0)
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
                "failed",
                "gateway",
                "paid",
                "lost",
                "store",
                "load",
                "hasten",
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
PROMPTS = ((1,) * 9, (*(1,) * 4, *(2,) * 8))
STORED = tuple(
    BlocksStored(names=digests_of(ids, block_tokens=BLOCK), parent=None, token_ids=ids[:8])
    for ids in (PROMPTS[0], PROMPTS[1][:8])
)


class Accounts:
    """Follows the actions alone, without knowing how they were decided.

    `prompts`: that have not ended; `server_of`: of those that are sent; `checked`: servers with a
    check or a canary that is out; `refused_by`: the servers that refused a prompt, and when first.
    """

    def __init__(self, servers: int, concurrency: int, slots: int) -> None:
        self.prompts: dict[int, Prompt] = {}
        self.server_of: dict[int, int] = {}
        self.attempts: Counter[int] = Counter()
        self.checked: set[int] = set()
        self.canary_us = [-1_000] * servers
        self.begun: set[int] = set()
        self.paid: Counter[int] = Counter()
        self.refused_by: dict[int, dict[int, int]] = defaultdict(dict)
        self.limits, self.slots = [concurrency] * servers, slots
        self.next_seqs = [0] * servers
        self.next_id = 0

    def note(self, event: DispatchEvent, now_us: int) -> None:
        """Notes an event. The dispatcher expires what is late, whatever the event says of it."""
        match event:
            case PromptArrived(prompt=prompt):
                self.prompts[prompt.id] = prompt
                self.next_id += 1
            case RequestRefused(id=None, server=server) | ProbePassed(server=server):
                self.checked.remove(server)
            case LoadSeen(server=server, waiting=waiting):
                at_it = [id for id, place in self.server_of.items() if place == server]
                sent = sum(not self.prompts[id].is_late(now_us) for id in at_it)
                self.limits[server] = next_concurrency(
                    self.limits[server], in_flight=sent + self.slots, waiting=waiting
                )
            case PromptHastened(id=id, priority=priority) if id in self.prompts:
                self.prompts[id] = replace(self.prompts[id], priority=priority)
            case RequestRefused(id=id) if id is not None and not self.prompts[id].is_late(now_us):
                self.refused_by[id].setdefault(self.server_of.pop(id), now_us)
                self.paid[id] += event.is_paid or id in self.begun
            case RequestAccepted(id=id):
                self.begun.add(id)
            case PromptsRevoked(ids=ids):
                for id in ids:
                    if not self.prompts[id].is_late(now_us):
                        self.end(id)

    def follow(
        self, actions: tuple[DispatchAction, ...], tries_max: int, now_us: int, are_open: set[int]
    ) -> None:
        for action in actions:
            match action:
                case SendPrompt(id=id, attempt=attempt, server=server):
                    assert id in self.prompts and id not in self.server_of
                    keys = {self.prompts[one].key for one in self.server_of}
                    assert self.prompts[id].key not in keys - {None}, "an equal one is sent"
                    assert self.takes(server, self.prompts[id]), "no slot for it"
                    self.server_of[id] = server
                    self.begun.discard(id)
                    self.attempts[id] += 1
                    assert attempt == self.attempts[id]
                case ProbeServer(server=server, probe=probe):
                    assert server not in self.checked
                    self.checked.add(server)
                    if probe == "canary":
                        assert now_us - self.canary_us[server] >= health.BACKOFF_US_MIN
                        self.canary_us[server] = now_us
                case EndQuery(id=id, how=how, text_of=other):
                    if other is not None:
                        assert other in self.server_of and id not in self.server_of
                        assert self.prompts[id].key == self.prompts[other].key is not None
                    assert how != "answered" or other is not None or id in self.server_of
                    assert how != "expired" or self.prompts[id].is_late(now_us)
                    assert how != "given_up" or self.has_failed(id, tries_max, now_us, are_open)
                    self.end(id)

    def has_failed(self, id: int, tries_max: int, now_us: int, are_open: set[int]) -> bool:
        """Whether a query may be given up."""
        first = self.refused_by[id]
        is_long = bool(first) and now_us - min(first.values()) >= LIMITS["later_us_max"]
        is_over = self.attempts[id] >= tries_max or is_long
        return self.paid[id] >= tries_max or (is_over and are_open <= first.keys())

    def takes(self, server: int, prompt: Prompt) -> bool:
        """Whether a server that takes prompts has a slot for this one: a batch leaves some free,
        except for one of its prompts.
        """
        there = [self.prompts[id] for id, place in self.server_of.items() if place == server]
        has_batch = any(one.priority >= BATCH_PRIORITY for one in there)
        left = self.slots if has_batch and prompt.priority >= BATCH_PRIORITY else 0
        return len(there) < self.limits[server] - left

    def end(self, id: int) -> None:
        """Ends a query, which is an error the second time."""
        del self.prompts[id]
        self.server_of.pop(id, None)


def event_of(kind: str, number: int, accounts: Accounts, now_us: int) -> DispatchEvent | None:
    running, next_id = sorted(accounts.server_of), accounts.next_id
    chosen = running[number % len(running)] if running else None
    match kind:
        case "arrive":
            deadline_us = now_us + 300 * number if number > 2 else None
            return PromptArrived(
                prompt=Prompt(
                    id=next_id,
                    arrival_us=now_us,
                    priority=(0, BATCH_PRIORITY, 1)[number % 3],
                    deadline_us=deadline_us,
                    token_ids=PROMPTS[next_id % 2],
                    key=(None, None, "a")[next_id % 3],
                )
            )
        case "check" if accounts.checked:
            return ProbePassed(server=min(accounts.checked))
        case "check_refused" if accounts.checked:
            return RequestRefused(id=None, server=max(accounts.checked))
        case "load":
            server = number % len(accounts.limits)
            return LoadSeen(server=server, waiting=(None, 0, 0, 0, 1, 3)[number])
        case "store":
            server = number % len(accounts.limits)
            accounts.next_seqs[server] += 1
            batch = KvBatch(seq=accounts.next_seqs[server] - 1, events=(STORED[number % 2],))
            return CacheChanged(server=server, event=batch)
        case "revoke" | "hasten":
            ids = sorted(accounts.prompts)
            hastened = next(iter(ids[number:]), 0)
            return (
                PromptHastened(id=hastened, priority=0, deadline_us=None)
                if kind == "hasten"
                else PromptsRevoked(ids=frozenset(ids[: number % 3]))
            )
        case "tick":
            return TimePassed()
        case "accept" | "end" | "refuse" | "failed" | "gateway" | "paid" | "lost" if (
            chosen is not None
        ):
            server = accounts.server_of[chosen]
            if kind == "lost":
                accounts.next_seqs[server] = 0  # it was started anew
            return {
                "accept": RequestAccepted(id=chosen),
                "end": RequestEnded(id=chosen),
                "refuse": RequestRefused(id=chosen, server=server, retry_after_us=number * 50),
                "failed": RequestRefused(id=chosen, server=server, refused_as="failed"),
                "gateway": RequestRefused(id=chosen, server=server, refused_as="gateway"),
                "paid": RequestRefused(id=chosen, server=server, refused_as="failed", is_paid=True),
                "lost": RequestRefused(id=chosen, server=server, is_lost=True),
            }[kind]
        case _:
            return None


# ---- against a plain bookkeeper, over random histories


@given(STEPS, st.integers(1, 3), st.booleans(), st.integers(1, 4), st.integers(0, 4))
def test_over_any_history_each_query_ends_once_or_is_still_there(
    steps: list[tuple[str, int, int]],
    servers: int,
    follows_caches: bool,
    concurrency: int,
    slots: int,
) -> None:
    dispatcher = new_dispatcher(
        servers=servers,
        follows_caches=follows_caches,
        tries_max=2,
        concurrency=concurrency,
        interactive_slots=slots,
    )
    accounts, now_us = Accounts(servers, concurrency, slots), 0
    for kind, number, wait_us in steps:
        now_us += wait_us
        event = event_of(kind, number, accounts, now_us)
        if event is None:
            continue
        open_before = [one for one in range(servers) if dispatcher.servers[one].is_open]
        were_sent = set(accounts.server_of)
        accounts.note(event, now_us)
        actions = dispatcher.step(event, now_us)
        are_open = {one for one in open_before if dispatcher.servers[one].is_open}
        accounts.follow(actions, 2, now_us, are_open)
        dispatcher.check_integrity()
        assert dispatcher.prompts == len(accounts.prompts)
        assert dispatcher.in_flight == len(accounts.server_of)
        cancelled = {action.id for action in actions if isinstance(action, CancelRequest)}
        assert cancelled <= were_sent - accounts.server_of.keys()
        sent_to = [action.server for action in actions if isinstance(action, SendPrompt)]
        for server in range(servers):
            state = dispatcher.servers[server].state
            assert state == "open" or server not in sent_to, "it refuses, or nobody knows"
            if state == "open" and not dispatcher.servers[server].is_proven:
                assert sent_to.count(server) <= 1, "one at a time"
            can_send = state == "open" and dispatcher.servers[server].is_proven
            if isinstance(event, PromptArrived) and event.prompt.key is None and can_send:
                is_sent = event.prompt.id in accounts.server_of
                assert is_sent or not accounts.takes(server, event.prompt), "it is sent at once"
        assert dispatcher.is_open or dispatcher.credit() == 0
        if isinstance(event, RequestRefused) and event.is_lost and follows_caches:
            tree = dispatcher.servers[event.server].tree
            assert tree is not None and tree.is_blind and len(tree) == 0
        wake_us = dispatcher.wake_us()
        assert wake_us is None or wake_us > now_us, "what is due was done"


@pytest.mark.parametrize("concurrency", [1, 2, 8])
@pytest.mark.parametrize("slots", [0, 1, 8])
@pytest.mark.parametrize("servers", [1, 2])
def test_a_batch_goes_on_however_many_slots_are_kept_and_interactive_prompts_wait(
    concurrency: int, slots: int, servers: int
) -> None:
    dispatcher = open_dispatcher(
        concurrency=concurrency, interactive_slots=slots, servers=servers, prompts_max=100
    )
    sent, ended = [], 0
    for id in range(100 + 3 * 2 * OLDEST_EVERY):
        is_batch = id in (50, 51, 52)
        prompt = Prompt(id=id, arrival_us=id, priority=BATCH_PRIORITY if is_batch else 0)
        sent += sent_by(dispatcher.step(PromptArrived(prompt=prompt), id))
        dispatcher.check_integrity()
        if id >= 60:
            sent += sent_by(dispatcher.step(RequestEnded(id=sent[ended]), id))
            ended += 1
    assert {50, 51, 52} <= set(sent[:ended])


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
    assert EndQuery(id=2, how="expired") in actions
    assert sent_by(actions) == [1]


# ---- several servers that say what they have cached


def caching_dispatcher(**limits: int) -> Dispatcher:
    """Two open servers; the first has the first prompt cached, the second the other one."""
    dispatcher = open_dispatcher(servers=2, follows_caches=True, prompts_max=20, **limits)
    for server in range(2):
        batch = KvBatch(seq=0, events=(STORED[server],))
        assert dispatcher.step(CacheChanged(server=server, event=batch), 0) == ()
    return dispatcher


def arrive(dispatcher: Dispatcher, id: int, prompt: int) -> list[SendPrompt]:
    event = PromptArrived(prompt=Prompt(id=id, arrival_us=id, token_ids=PROMPTS[prompt]))
    actions = dispatcher.step(event, 1)
    dispatcher.check_integrity()
    return [action for action in actions if isinstance(action, SendPrompt)]


def test_a_prompt_goes_to_the_server_that_has_most_of_it_cached_up_to_its_share_of_the_work() -> (
    None
):
    dispatcher = caching_dispatcher(concurrency=8)
    servers = [sent.server for id in range(6) for sent in arrive(dispatcher, id, prompt=1)]
    assert servers == [1, 1, 0, 1, 0, 1], "server 1 has at most two requests more"


def test_a_lost_server_loses_its_credit_at_once_and_the_other_keeps_its_own() -> None:
    dispatcher = caching_dispatcher(concurrency=8)
    (sent,) = arrive(dispatcher, 1, prompt=1)
    actions = dispatcher.step(RequestRefused(id=1, server=1, is_lost=True), 2)
    assert actions == (SendPrompt(id=1, attempt=2, server=0), ProbeServer(server=1, probe="check"))
    lost, kept = dispatcher.servers[1].tree, dispatcher.servers[0].tree
    assert lost is not None and lost.is_blind and len(lost) == 0
    assert kept is not None and len(kept) == 2
    dispatcher.step(RequestRefused(id=None, server=1), 2)
    dispatcher.step(TimePassed(), 102)
    dispatcher.step(ProbePassed(server=1), 102)
    (sent,) = arrive(dispatcher, 2, prompt=1)
    assert sent.server == 0, "server 0 has a block of the prompt"


def test_a_warm_up_goes_to_an_open_server_with_a_place_that_has_most_cached() -> None:
    dispatcher = caching_dispatcher(concurrency=2)
    warm = [dispatcher.server_to_warm(ids, (0, 0)) for ids in PROMPTS]
    assert warm == [0, 1]
    assert [dispatcher.server_to_warm((), each) for each in ((0, 0), (1, 0), (0, 1))] == [0, 1, 0]
    assert dispatcher.server_to_warm(PROMPTS[1], (0, 2)) == 0, "the other one is full"
    (sent,) = arrive(dispatcher, 1, prompt=1)
    assert sent.server == 1
    assert dispatcher.server_to_warm((), (0, 0)) == 0, "the other one has a prompt"
    dispatcher.step(RequestRefused(id=1, server=1), 2)
    assert dispatcher.server_to_warm(PROMPTS[1], (0, 0)) == 0, "the other one is not open"


def test_a_prompt_with_unknown_tokens_goes_to_the_server_that_was_warmed_for_it() -> None:
    dispatcher = caching_dispatcher(concurrency=8)
    servers = []
    for id in range(4):
        prompt = Prompt(id=id, arrival_us=id, warmed_at=1)
        (sent,) = dispatcher.step(PromptArrived(prompt=prompt), 1)
        assert isinstance(sent, SendPrompt)
        servers.append(sent.server)
    assert servers == [1, 1, 0, 1], "not where it has more than its share of the work"


def test_a_gap_in_a_servers_events_asks_for_a_replay() -> None:
    dispatcher = caching_dispatcher()
    event = CacheChanged(server=1, event=KvBatch(seq=5, events=()))
    assert dispatcher.step(event, 1) == (ReplayCache(server=1, replay_from=1),)


def test_tokens_that_become_known_later_count_also_after_a_refusal() -> None:
    dispatcher = caching_dispatcher(concurrency=1)
    for id in (1, 2):
        dispatcher.step(PromptArrived(prompt=Prompt(id=id, arrival_us=id)), 1)
    dispatcher.step(PromptTokenized(id=1, token_ids=PROMPTS[0]), 1)
    dispatcher.step(RequestRefused(id=1, server=0), 1)
    actions = dispatcher.step(RequestEnded(id=2), 1)
    assert SendPrompt(id=1, attempt=2, server=1) in actions

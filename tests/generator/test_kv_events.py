"""KV events over ZeroMQ, of a stand-in for vLLM's publisher, and what goes wrong on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest
from structlog.testing import capture_logs

from carpool.vllm import kv_replay_endpoint
from generator.llm import kv_events
from generator.llm.kv_events import KvEvents, events_of
from generator.plan.kv_tree import KvTree, KvTreeEvent, ServerLost
from tests.rig.kv_events import KvPublisher
from tests.waiting import wait_until_async

BLOCK = 16
A, B = tuple(range(100, 100 + 3 * BLOCK)), tuple(range(200, 200 + 2 * BLOCK))


class Follower:
    """A tree that follows a publisher, as the generator's does, while its event loop runs."""

    def __init__(self, publisher: KvPublisher) -> None:
        self.loop = asyncio.new_event_loop()
        self.publisher = publisher
        self.tree = KvTree()
        self.events: list[KvTreeEvent] = []
        self.unreadable = 0
        self.subscriber = KvEvents(publisher.endpoint, self._happened, self._count)

    def _happened(self, event: KvTreeEvent) -> None:
        self.events.append(event)
        step = self.tree.step(event)
        self.tree.check_integrity()
        if step.replay_from is not None:
            self.subscriber.replay(step.replay_from)

    def _count(self) -> None:
        self.unreadable += 1

    def cached(self, token_ids: tuple[int, ...]) -> int:
        return self.tree.cached_of(token_ids)

    def until(self, holds: Callable[[], bool]) -> None:
        self.loop.run_until_complete(wait_until_async(holds))

    def connected(self) -> None:
        self.until(self.publisher.has_subscriber)


@pytest.fixture
def publisher() -> Iterator[KvPublisher]:
    with KvPublisher(block_tokens=BLOCK) as publisher:
        yield publisher


@contextmanager
def following(publisher: KvPublisher, *, is_there: bool = True) -> Iterator[Follower]:
    follower = Follower(publisher)
    running = follower.loop.create_task(follower.subscriber.run())
    try:
        if is_there:
            follower.connected()
        yield follower
    finally:
        running.cancel()
        follower.loop.run_until_complete(asyncio.gather(running, return_exceptions=True))
        follower.loop.close()


def test_a_tree_asks_for_what_was_before_and_follows_what_is_stored_removed_and_cleared(
    publisher: KvPublisher,
) -> None:
    publisher.publish(publisher.store(A))
    publisher.publish(publisher.store(B))
    with following(publisher) as run:
        assert run.tree.is_blind
        publisher.publish(publisher.remove(B))
        run.until(lambda: run.cached(A) == 48)
        assert (run.cached(B), run.tree.block_tokens) == (0, BLOCK)
        publisher.publish(publisher.remove(A, first=2), publisher.store(B))
        run.until(lambda: run.cached(B) == 32)
        assert run.cached(A) == 32
        publisher.publish(publisher.store(A, first=2))
        run.until(lambda: run.cached(A) == 48)
        publisher.publish({"type": "AllBlocksCleared"})
        run.until(lambda: len(run.tree) == 0)
    assert (publisher.replays, run.tree.counts, run.unreadable) == (1, {"replayed": 1}, 0)
    assert not run.tree.is_blind


def test_a_server_that_replays_nothing_is_waited_for_a_bounded_time(
    publisher: KvPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_events, "REPLAY_TIMEOUT_S", 0.05)
    publisher.is_mute = True
    publisher.publish(publisher.store(A), is_sent=False)
    with capture_logs() as logs, following(publisher) as run:
        publisher.publish(publisher.store(B))
        run.until(lambda: run.cached(B) == 32)
    assert (run.cached(A), run.tree.counts["emptied"]) == (0, 1)
    assert "the LLM server replays no KV events" in [entry["event"] for entry in logs]


def garbage(publisher: KvPublisher) -> dict[str, tuple[bytes, ...]]:
    seq, encode = (0).to_bytes(8, "big"), msgspec.msgpack.encode
    good = publisher.store(A)
    long = {**good, "block_hashes": [b"x" * 65]}
    return {
        "no frames": (b"",),
        "no number": (b"", b"\x01", encode([0.0, [], 0])),
        "a negative number": (b"", b"\xff" * 8, encode([0.0, [], 0])),
        "no msgpack": (b"", seq, b"\xc1 <html>"),
        "an unknown event": (b"", seq, encode([0.0, [{"type": "BlockMoved"}], 0])),
        "no list": (b"", seq, encode({"events": []})),
        "a token that is no id": (b"", seq, encode([0.0, [{**good, "token_ids": ["a"]}], 0])),
        "a size below 0": (b"", seq, encode([0.0, [{**good, "block_size": -1}], 0])),
        "a name that is too long": (b"", seq, encode([0.0, [long], 0])),
        "another rank": (b"", seq, encode([0.0, [good], 1])),
    }


def test_a_batch_that_cannot_be_read_counts_as_lost(publisher: KvPublisher) -> None:
    messages = garbage(publisher)
    with capture_logs() as logs, following(publisher) as run:
        for count, frames in enumerate(messages.values(), start=1):
            publisher.send_frames(*frames)
            run.until(lambda count=count: run.unreadable == count)
        assert run.tree.is_blind and run.events == []
        publisher.publish(publisher.store(A))
        run.until(lambda: run.cached(A) == 48)
        publisher.send(publisher.publish(is_sent=False), b"garbage")
        publisher.publish(publisher.store(B))
        run.until(lambda: run.cached(B) == 32)
    assert run.tree.counts == {"replayed": 1}, "what was garbled was replayed"
    said = [entry for entry in logs if "cannot be read" in entry["event"]]
    assert len(said) == 1, "once for a connection"


def test_a_message_that_is_too_large_ends_the_connection(
    publisher: KvPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_events, "MESSAGE_BYTES_MAX", 10_000)
    with following(publisher) as run:
        publisher.publish(publisher.store(A))
        run.until(lambda: run.cached(A) == 48)
        publisher.send(1, b"x" * 20_000)
        run.until(lambda: run.tree.is_blind)
        assert isinstance(run.events[-1], ServerLost)
        run.until(lambda: not publisher.has_subscriber())
        run.connected()
        publisher.publish(publisher.store(B))
        run.until(lambda: run.cached(B) == 32)
    assert run.cached(A) == 48, "the lost batch was replayed"


def test_what_our_prompts_cannot_use_is_left_out(publisher: KvPublisher) -> None:
    def read(*events: object) -> int:
        return len(events_of(msgspec.msgpack.encode([0.0, events, None])))

    good = publisher.store(A)
    assert read(good, publisher.remove(A), {"type": "AllBlocksCleared"}) == 3
    for field, value in {
        "medium": "STORAGE",
        "lora_name": "adapter",
        "extra_keys": [None, ["salt"], None],
        "group_idx": 1,
        "token_ids": good["token_ids"][:-1],
        "block_hashes": [],
    }.items():
        assert read({**good, field: value}) == 0, field
    assert read({**good, "extra_keys": [None, None, None], "session_id": "s", "later": 1}) == 1
    for field, value in {"medium": "STORAGE", "group_idx": 1}.items():
        assert read({**publisher.remove(A), field: value}) == 0, field
    placeholder = {"medium": "CPU", "token_ids": [], "block_size": 0, "parent_block_hash": None}
    assert read({**good, **placeholder}) == 0


def test_blocks_in_the_memory_of_the_host_are_followed(publisher: KvPublisher) -> None:
    with following(publisher) as run:
        publisher.publish(publisher.store(A), publisher.store(A, medium="CPU"))
        publisher.publish({**publisher.remove(A, first=1), "medium": "GPU"})
        publisher.publish(publisher.store(B))
        run.until(lambda: run.cached(B) == 32)
        assert run.cached(A) == 48, "one block from the GPU, two from the host"
        publisher.publish({**publisher.remove(A, first=2), "medium": "CPU"})
        run.until(lambda: run.cached(A) == 32)


def test_a_server_that_is_not_there_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_events, "SILENT_S", 0.02)
    publisher = KvPublisher(block_tokens=BLOCK)

    with capture_logs() as logs, following(publisher, is_there=False) as run:
        run.until(lambda: len(logs) == 1)
        with publisher:
            run.connected()
            publisher.publish(publisher.store(A))
            run.until(lambda: run.cached(A) == 48)
    silent, connected, *_ = (entry["event"] for entry in logs)
    assert "--kv-events-config" in silent
    assert connected.startswith("follows")


@pytest.mark.parametrize(
    ("endpoint", "replay"),
    [
        ("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558"),
        ("tcp://[::1]:5557", "tcp://[::1]:5558"),
        ("ipc:///run/kv", "ipc:///run/kv.replay"),
    ],
)
def test_a_replay_is_asked_for_next_to_the_events(endpoint: str, replay: str) -> None:
    assert kv_replay_endpoint(endpoint) == replay

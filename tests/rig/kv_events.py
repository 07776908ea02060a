"""A publisher of KV events with faults: lost, garbled and unanswered batches."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from carpool.testing import kv_events
from carpool.testing.kv_events import KvEventMap


class KvPublisher(kv_events.KvPublisher):
    """A test says what is stored and removed. Use it from one thread."""

    def __init__(self, *, endpoint: str | None = None, block_tokens: int = 16) -> None:
        super().__init__(endpoint=endpoint, block_tokens=block_tokens)
        self.replays = 0
        """Replays that were asked for."""
        self.is_mute = False
        """Requests for a replay get no answer."""
        self._subscribers = 0

    def restart(self) -> None:
        """Ends the server, and starts it with an empty cache: its numbers begin at 0 again."""
        self.stop()
        self._seq, self._kept, self._subscribers = 0, [], 0
        self._start()

    def has_subscriber(self) -> bool:
        """Returns whether a subscriber gets what is published after this call."""
        assert self._pub is not None
        while self._pub.poll(0):
            self._subscribers += 1 if self._pub.recv()[:1] == b"\x01" else -1
        return self._subscribers > 0

    def remove(self, token_ids: Sequence[int], *, first: int = 0) -> KvEventMap:
        """Returns the event that the blocks of a prompt were removed, from block `first` on."""
        names = self.names(token_ids)[first:]
        return {"type": "BlockRemoved", "block_hashes": names, "medium": "GPU"}

    def publish(self, *events: KvEventMap, is_sent: bool = True) -> int:
        """Publishes a batch, and returns its number. Not sent: it is lost on the way."""
        seq, self._seq = self._seq, self._seq + 1
        payload = msgspec.msgpack.encode([0.0, events, 0])
        if is_sent:
            self._send(seq, payload)
        self._kept.append((seq, payload))
        return seq

    def send(self, seq: int, payload: bytes) -> None:
        """Sends any bytes as a batch."""
        self._send(seq, payload)

    def send_frames(self, *frames: bytes) -> None:
        """Sends any message."""
        assert self._pub is not None
        self._pub.send_multipart(frames)

    def _answers_replay(self) -> bool:
        self.replays += 1
        return not self.is_mute

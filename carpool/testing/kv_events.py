"""A stand-in for vLLM's publisher of KV events: batches over ZeroMQ, and their replays."""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import zmq

from carpool.vllm import kv_replay_endpoint

POLL_MS = 10
KvEventMap: TypeAlias = Mapping[str, Any]


class KvPublisher:
    """A context manager; `endpoint` is for `llm.kv_events`, None: one of its own.

    Batches are numbered from 0. Use it from one thread.
    """

    def __init__(self, *, endpoint: str | None = None, block_tokens: int = 16) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="carpool-")
        self.endpoint = endpoint or f"ipc://{self._folder.name}/kv"
        self.block_tokens = block_tokens
        self._seq = 0
        self._kept: list[tuple[int, bytes]] = []
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._pub: zmq.Socket[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def __enter__(self) -> KvPublisher:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._folder.cleanup()

    def _start(self) -> None:
        self._stop.clear()
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.XPUB)
        self._pub.bind(self.endpoint)
        bound = threading.Event()
        self._thread = threading.Thread(target=self._serve_replays, args=(bound,), daemon=True)
        self._thread.start()
        bound.wait()

    def stop(self) -> None:
        """Ends the server, as a crash does."""
        if self._context is not None and self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._context.destroy(linger=0)
            self._context = None

    def store(self, token_ids: Sequence[int], *, first: int = 0, **fields: Any) -> KvEventMap:
        """Returns the event that the full blocks of a prompt were stored, from block `first` on."""
        size = self.block_tokens
        names = self.names(token_ids)
        return {
            "type": "BlockStored",
            "block_hashes": names[first:],
            "parent_block_hash": names[first - 1] if first else None,
            "token_ids": list(token_ids[first * size : len(names) * size]),
            "block_size": size,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            **fields,
        }

    def names(self, token_ids: Sequence[int]) -> list[bytes]:
        """Returns the names of the full blocks of a prompt."""
        size, name, names = self.block_tokens, b"", []
        for end in range(size, len(token_ids) + 1, size):
            block = msgspec.msgpack.encode(token_ids[end - size : end])
            name = hashlib.sha256(name + block).digest()
            names.append(name)
        return names

    def publish(self, *events: KvEventMap) -> None:
        """Publishes a batch."""
        payload = msgspec.msgpack.encode([0.0, events, 0])
        self._send(self._seq, payload)
        self._kept.append((self._seq, payload))
        self._seq += 1

    def _send(self, seq: int, payload: bytes) -> None:
        assert self._pub is not None
        self._pub.send_multipart((b"", seq.to_bytes(8, "big"), payload))

    def _answers_replay(self) -> bool:
        return True

    def _serve_replays(self, bound: threading.Event) -> None:
        assert self._context is not None
        with self._context.socket(zmq.ROUTER) as router:
            router.setsockopt(zmq.LINGER, 0)
            router.bind(kv_replay_endpoint(self.endpoint))
            bound.set()
            while not self._stop.is_set():
                if not router.poll(POLL_MS):
                    continue
                client, _, first = router.recv_multipart()
                if not self._answers_replay():
                    continue
                for seq, payload in self._kept:
                    if seq >= int.from_bytes(first, "big"):
                        router.send_multipart((client, b"", b"", seq.to_bytes(8, "big"), payload))
                end = (-1).to_bytes(8, "big", signed=True)
                router.send_multipart((client, b"", b"", end, b""))

"""Reads vLLM's KV events, which say which blocks of tokens the server has stored and removed.

vLLM publishes numbered batches of events over ZeroMQ (PUB), and sends earlier batches again on
request (ROUTER). Each connection has a socket of its own, so all batches of a socket come from one
server process. Batches are validated. One that cannot be read is skipped, and the tree finds the
gap in the numbers.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
import structlog
from msgspec import Meta

from carpool.vllm import kv_replay_endpoint
from generator.plan.kv_tree import (
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    KvBatch,
    KvEvent,
    KvTreeEvent,
    ReplayEnded,
    ServerLost,
)

if TYPE_CHECKING:
    from zmq.asyncio import Context, Socket

log = structlog.get_logger()

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
"""A longer message ends the connection. A step of vLLM makes a few kilobytes."""
RECONNECT_S = 0.5
REPLAY_TIMEOUT_S = 5.0
"""How long the next batch of a replay may take; after that the replay counts as ended."""
SILENT_S = 120.0
"""How long there may be no connection before a log line says so; vLLM takes a minute to start."""
SEQ_BYTES = 8
REPLAY_END = -1
HOST = "CPU"
"""The medium of blocks that vLLM keeps in host memory."""

BlockName: TypeAlias = Annotated[bytes, Meta(max_length=64)] | int


class _Stored(msgspec.Struct, frozen=True, tag="BlockStored"):
    block_hashes: list[BlockName]
    parent_block_hash: BlockName | None
    token_ids: list[Annotated[int, Meta(ge=0, lt=1 << 62)]]
    block_size: Annotated[int, Meta(ge=0, le=1 << 20)]
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None


class _Removed(msgspec.Struct, frozen=True, tag="BlockRemoved"):
    block_hashes: list[BlockName]
    medium: str | None = None
    group_idx: int | None = None


class _Cleared(msgspec.Struct, frozen=True, tag="AllBlocksCleared"):
    pass


class _Batch(msgspec.Struct, frozen=True, array_like=True):
    ts: float
    events: list[_Stored | _Removed | _Cleared]
    data_parallel_rank: int | None = None


_decoder = msgspec.msgpack.Decoder(_Batch)


def can_follow() -> bool:
    """Returns whether ZeroMQ is installed."""
    return importlib.util.find_spec("zmq") is not None


class KvEvents:
    """Follows one server. For one event loop.

    `on_event` gets batches, `ReplayEnded` after each replay, and `ServerLost` when the connection
    is lost: later batches may come from another server process. `on_unreadable` is called for each
    batch that cannot be read.
    """

    def __init__(
        self,
        endpoint: str,
        on_event: Callable[[KvTreeEvent], None],
        on_unreadable: Callable[[], None],
    ) -> None:
        self.endpoint = endpoint
        self._on_event = on_event
        self._on_unreadable = on_unreadable
        self._said_unreadable = False
        self._context: Context | None = None
        self._group: asyncio.TaskGroup | None = None
        self._replaying: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Follows the server until it is cancelled; connects again when the connection is lost."""
        import zmq.asyncio  # the client, and retrieval without a model, do not need ZeroMQ

        self._context = zmq.asyncio.Context()
        try:
            async with asyncio.TaskGroup() as self._group:
                while True:
                    await self._follow(self._context)
                    log.warning("lost the LLM server's KV events", endpoint=self.endpoint)
                    self._lost()
                    await asyncio.sleep(RECONNECT_S)
        finally:
            self._context.destroy(linger=0)

    def replay(self, first: int) -> None:
        """Asks for all batches from number `first` on. Ends an earlier replay."""
        assert self._group is not None, "only a server that is followed can be asked"
        self._end_replay()
        self._replaying = self._group.create_task(self._replay(first))

    def _lost(self) -> None:
        self._end_replay()
        self._said_unreadable = False
        self._on_event(ServerLost())

    def _end_replay(self) -> None:
        if self._replaying is not None:
            self._replaying.cancel()
            self._replaying = None

    async def _follow(self, context: Context) -> None:
        """Follows one connection; returns when it is lost."""
        import zmq

        with context.socket(zmq.SUB) as socket:
            socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
            socket.setsockopt(zmq.LINGER, 0)
            monitor = socket.get_monitor_socket(
                zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
            )
            receiving = asyncio.create_task(self._receive(socket))
            watching = asyncio.create_task(self._watch(monitor))
            try:
                socket.subscribe("")
                socket.connect(self.endpoint)
                done, _ = await asyncio.wait(
                    {receiving, watching}, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    task.result()
            finally:
                receiving.cancel()
                watching.cancel()
                await asyncio.gather(receiving, watching, return_exceptions=True)
                socket.disable_monitor()

    async def _watch(self, monitor: Socket) -> None:
        """Returns when the connection is lost."""
        import zmq
        from zmq.utils.monitor import parse_monitor_message

        waiting = asyncio.create_task(self._say_silent())
        try:
            while True:
                event = parse_monitor_message(await monitor.recv_multipart())
                waiting.cancel()
                if event["event"] == zmq.EVENT_DISCONNECTED:
                    return
                log.info("follows the KV events of the LLM server", endpoint=self.endpoint)
        finally:
            waiting.cancel()

    async def _say_silent(self) -> None:
        await asyncio.sleep(SILENT_S)
        log.warning(
            "no KV events arrive from llm.kv_events; is vLLM started with --kv-events-config? "
            "Until there are, prompts are sent in the order of arrival",
            endpoint=self.endpoint,
        )

    async def _receive(self, socket: Socket) -> None:
        while True:
            _, batch = self._read(await socket.recv_multipart(), is_replayed=False)
            if batch is not None:
                self._on_event(batch)

    async def _replay(self, first: int) -> None:
        import zmq

        assert self._context is not None
        with self._context.socket(zmq.DEALER) as socket:
            socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVHWM, 0)  # a replay has as many batches as the server kept
            socket.connect(kv_replay_endpoint(self.endpoint))
            try:
                async with asyncio.timeout(REPLAY_TIMEOUT_S) as timeout:
                    await socket.send_multipart((b"", first.to_bytes(SEQ_BYTES, "big")))
                    while True:
                        seq, batch = self._read(await socket.recv_multipart(), is_replayed=True)
                        if seq == REPLAY_END:
                            break
                        if batch is not None:
                            self._on_event(batch)
                        timeout.reschedule(asyncio.get_running_loop().time() + REPLAY_TIMEOUT_S)
            except TimeoutError:
                log.warning("the LLM server replays no KV events", endpoint=self.endpoint)
        self._replaying = None
        self._on_event(ReplayEnded())

    def _read(
        self, frames: Sequence[bytes], *, is_replayed: bool
    ) -> tuple[int | None, KvBatch | None]:
        """Returns the number and the batch of a message; None for a message that cannot be read."""
        seq = None
        try:
            *_, seq_bytes, payload = frames
            if len(seq_bytes) != SEQ_BYTES:
                raise ValueError(f"a number of {len(seq_bytes)} bytes")
            seq = int.from_bytes(seq_bytes, "big", signed=True)
            if is_replayed and seq == REPLAY_END:
                return seq, None
            if seq < 0:
                raise ValueError(f"the number {seq}")
            return seq, KvBatch(seq=seq, events=events_of(payload), is_replayed=is_replayed)
        except ValueError as error:  # msgspec's errors too
            self._on_unreadable()
            if not self._said_unreadable:
                self._said_unreadable = True
                log.warning(
                    "KV events of the LLM server cannot be read; vLLM 0.32 or newer is needed",
                    endpoint=self.endpoint,
                    error=str(error),
                )
            return seq, None


def events_of(payload: bytes) -> tuple[KvEvent, ...]:
    """Returns the events of a batch that are about prompts of the model alone.

    Left out: blocks of adapters, pictures and cache salts, which our prompts do not have (events of
    the host do not say the last two); blocks without tokens, as vLLM sends of the host where
    `self_describing_kv_events` is off; copies in other memory; and all groups of layers but the
    first. Raises `ValueError` for a message that is no batch, and for a server with data
    parallelism, where each rank has a cache of its own.
    """
    batch = _decoder.decode(payload)
    if batch.data_parallel_rank:
        raise ValueError(f"the events of data-parallel rank {batch.data_parallel_rank}")
    events: list[KvEvent] = []
    for event in batch.events:
        match event:
            case _Stored() if _is_ours(event):
                events.append(
                    BlocksStored(
                        names=tuple(event.block_hashes),
                        parent=event.parent_block_hash,
                        token_ids=event.token_ids,
                        is_on_host=event.medium == HOST,
                    )
                )
            case _Removed(medium=None | "GPU" | "CPU", group_idx=None | 0):
                names, is_on_host = tuple(event.block_hashes), event.medium == HOST
                events.append(BlocksRemoved(names=names, is_on_host=is_on_host))
            case _Cleared():
                events.append(BlocksCleared())
    return tuple(events)


def _is_ours(stored: _Stored) -> bool:
    return (
        stored.medium in (None, "GPU", HOST)
        and not stored.group_idx
        and stored.lora_name is None
        and not any(stored.extra_keys or ())
        and len(stored.token_ids) == stored.block_size * len(stored.block_hashes) > 0
    )

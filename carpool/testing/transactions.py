"""Reads the state of a transaction from its coordinator, also of a dead producer.

Uses Kafka's protocol (DescribeTransactions, version 0, KIP-664), which librdkafka lacks.
"""

from __future__ import annotations

import io
import socket
import struct
from typing import BinaryIO

import msgspec

API_KEY = 65
CLIENT_ID = b"carpool-testing"
TIMEOUT_S = 2.0
OPEN = "Ongoing"


class DescribedTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a transactional id: Ongoing, PrepareCommit, CompleteCommit, Empty..."""

    state: str

    @property
    def is_open(self) -> bool:
        """Whether some of its records are neither committed nor aborted."""
        return self.state == OPEN


def describe_transaction(bootstrap: str, transactional_id: str) -> DescribedTransaction | None:
    """Returns the transaction; None if no broker of `bootstrap` knows it. Blocks.

    A broker that is down or paused is skipped after at most `TIMEOUT_S`.
    """
    for address in bootstrap.split(","):
        try:
            found = _ask(address, transactional_id)
        except OSError:
            continue
        if found is not None:
            return found
    return None


def _ask(address: str, transactional_id: str) -> DescribedTransaction | None:
    host, _, port = address.rpartition(":")
    name = transactional_id.encode()
    body = struct.pack(">hhih", API_KEY, 0, 1, len(CLIENT_ID)) + CLIENT_ID + b"\0"
    body += b"\x02" + _varint(len(name) + 1) + name + b"\0"
    with (
        socket.create_connection((host, int(port)), TIMEOUT_S) as connection,
        connection.makefile("rb") as replies,
    ):
        connection.sendall(struct.pack(">i", len(body)) + body)
        (length,) = struct.unpack(">i", _exactly(replies, 4))
        return parse_reply(_exactly(replies, length))


def parse_reply(content: bytes) -> DescribedTransaction | None:
    """Returns the transaction of a reply (without its length); None for an error code."""
    reply = _ReplyReader(content)
    reply.skip(4 + 1 + 4)  # correlation id, no tagged fields, throttle time
    if reply.varint() != 2:
        return None
    (error,) = struct.unpack(">h", reply.read(2))
    reply.skip(reply.varint() - 1)  # transactional id
    state = reply.text()
    return None if error else DescribedTransaction(state=state)


class _ReplyReader(io.BytesIO):
    def skip(self, length: int) -> None:
        self.seek(max(0, length), io.SEEK_CUR)

    def varint(self) -> int:
        value = shift = 0
        while True:
            (byte,) = self.read(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def text(self) -> str:
        return self.read(self.varint() - 1).decode()


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _exactly(replies: BinaryIO, length: int) -> bytes:
    content = replies.read(length)
    if len(content) < length:
        raise ConnectionResetError("the broker closed the connection")
    return content

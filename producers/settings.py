"""The section `client`: how long a client waits, and how much it keeps in memory."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from carpool.settings import Settings


class ClientSettings(Settings, frozen=True, kw_only=True):
    """Bounds of the Python client, of `carpool ask` and of the load generator."""

    connect_timeout_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=300_000,
            description="How long brokers may take to answer at first, ms. Low: slow networks "
            "fail.",
        ),
    ] = 10_000
    publish_timeout_ms: Annotated[
        int,
        Meta(
            ge=1_000,
            le=3_600_000,
            description="How long brokers may take to acknowledge a question, with retries, ms. "
            "Low: a leader's move fails it.",
        ),
    ] = 30_000
    answer_timeout_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=86_400_000,
            description="How long `ask` waits where its caller does not say, ms; travels as the "
            "deadline.",
        ),
    ] = 60_000
    asks_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="Questions that may wait for answers at once. Low: `ask` refuses; high: "
            "memory.",
        ),
    ] = 10_000
    queue_kib: Annotated[
        int,
        Meta(
            ge=1_024,
            le=2_097_151,
            description="Memory for questions not yet sent, KiB. Low: bursts are refused.",
        ),
    ] = 65_536
    fetch_wait_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=5_000,
            description="How long a broker may hold an empty fetch. Low: more requests; high: "
            "latency.",
        ),
    ] = 10

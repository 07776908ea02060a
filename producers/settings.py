"""The section `client`: time-outs and memory of the Python client."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from carpool.kafka.settings import KafkaSettings
from carpool.settings import Settings


class ClientSettings(Settings, frozen=True, kw_only=True):
    """Bounds of the Python client, and of `carpool ask`."""

    publish_timeout_ms: Annotated[
        int,
        Meta(
            ge=1_000,
            le=3_600_000,
            description="Time until a question is acknowledged, with retries, ms; too low fails "
            "when a leader moves",
        ),
    ] = 30_000
    answer_timeout_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=86_400_000,
            description="Time that `ask` waits by default, ms, also sent as the deadline; too low "
            "gives up early, too high waits for a service that is down",
        ),
    ] = 60_000
    price_in: Annotated[
        float,
        Meta(ge=0, description="Price of a million tokens of prompts, for `carpool batch`"),
    ] = 0.0
    price_out: Annotated[
        float,
        Meta(ge=0, description="Price of a million tokens of answers, in the same currency"),
    ] = 0.0


class ClientSections(msgspec.Struct, frozen=True, kw_only=True):
    """The sections that the Python client reads."""

    kafka: KafkaSettings
    client: ClientSettings

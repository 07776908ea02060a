"""The sections `http` and `log`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from carpool.settings import Settings


class HttpSettings(Settings, frozen=True, kw_only=True):
    """The address of /healthz, /readyz and /metrics."""

    host: Annotated[
        str,
        Meta(
            description="Address to listen at. Loopback by default; 0.0.0.0 only inside a "
            "container."
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int, Meta(ge=0, le=65_535, description="Port; 0: a free one (logged at start).")
    ] = 0


class LogSettings(Settings, frozen=True, kw_only=True):
    """The level of logs, which are lines of JSON."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="The lowest severity that is logged."),
    ] = "info"

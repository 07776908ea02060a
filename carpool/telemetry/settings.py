"""The sections `http` and `log`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from carpool.settings import Settings

TENANTS_MAX = 100


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
        int,
        Meta(
            ge=-1,
            le=65_535,
            description="Port; 0: a free one (logged at start); -1: no HTTP pages at all.",
        ),
    ] = 0
    connections_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000,
            description="Connections served at the same time; for one more, the oldest is closed. "
            "Low: slow clients cut off scrapes; high: a thread for each of many clients.",
        ),
    ] = 16
    request_timeout_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=600_000,
            description="Longest time from a connection to the end of its reply. Low: cuts off "
            "scrapes over a slow network; high: slow clients keep their connections.",
        ),
    ] = 10_000
    tenants_max: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000,
            description="Tenants (header rag-tenant) whose tokens /metrics counts by name; later "
            "tenants are counted as `other`. Too low hides who costs what, too high makes /metrics "
            "large.",
        ),
    ] = TENANTS_MAX


class LogSettings(Settings, frozen=True, kw_only=True):
    """The level and format of logs."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="The lowest severity that is logged."),
    ] = "info"
    format: Annotated[
        Literal["json", "console"],
        Meta(description="Json: one line for each event; console: for reading in a terminal."),
    ] = "json"

"""The section `up`: what `carpool up` starts, and where."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from carpool.settings import Settings


class UpSettings(Settings, frozen=True, kw_only=True):
    """Ports and time limits of `carpool up`. A default port in use is replaced by a free one."""

    state_dir: Annotated[
        str,
        Meta(
            min_length=1,
            description="Folder for the logs of what is started, and its addresses (run.json).",
        ),
    ] = ".carpool/run"
    broker_port: Annotated[
        int, Meta(ge=0, le=65_535, description="Port of the embedded broker; 0: a free one.")
    ] = 9092
    http_port: Annotated[
        int,
        Meta(
            ge=0,
            le=65_533,
            description="Port of the HTTP pages of the grouper; the searcher has the next one, the "
            "generator the one after. 0: free ones.",
        ),
    ] = 9101
    ready_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3_600,
            description="How long each part may take to be ready, s; vLLM after the last line of "
            "its log. Low: slow machines give up; high: hangs last.",
        ),
    ] = 300.0

"""The section `up`: what `carpool up` starts, and where."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from carpool.settings import Settings

Port = Annotated[int, Meta(ge=0, le=65_535)]


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
    grouper_port: Annotated[
        int, Meta(ge=0, le=65_535, description="Port of the grouper's HTTP pages; 0: a free one.")
    ] = 9101
    searcher_port: Annotated[
        int, Meta(ge=0, le=65_535, description="Port of the searcher's HTTP pages; 0: a free one.")
    ] = 9102
    generator_port: Annotated[
        int, Meta(ge=0, le=65_535, description="Port of the generator's HTTP pages; 0: a free one.")
    ] = 9103
    ready_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3_600,
            description="How long each part may take to be ready, s. Low: slow machines give up; "
            "high: hangs last.",
        ),
    ] = 300.0
    stop_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=600,
            description="How long each part may take to end, s, before it is killed. Low: work is "
            "done again.",
        ),
    ] = 35.0
    restarts_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000,
            description="How often a part that ends by itself is restarted before `carpool up` "
            "ends; after quiet_s the count starts again.",
        ),
    ] = 5
    log_bytes_max: Annotated[
        int,
        Meta(
            ge=65_536,
            description="Size of the log of a part, bytes, above which its content replaces that "
            "of NAME.log.1. Low: less to read after an error.",
        ),
    ] = 67_108_864
    restart_delay_s: Annotated[
        float,
        Meta(
            gt=0,
            le=60,
            description="Pause before the first restart, s; doubled for each more, to 30 s.",
        ),
    ] = 0.5

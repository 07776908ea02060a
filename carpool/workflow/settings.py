"""The section `workflow`: which programs there are, and how much a workflow may take."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from carpool.settings import Settings


class WorkflowSettings(Settings, frozen=True, kw_only=True):
    """Programs and limits of workflows."""

    modules: Annotated[
        str,
        Meta(
            description="Python modules or .py files with programs of your own, separated by "
            "commas; grouper and generator must have the same. Each runs in a child process of "
            "these services, and may import little (`carpool workflows check FILE` says what)"
        ),
    ] = ""
    steps_max: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="Steps of a workflow, without its answer; a program may have a lower limit "
            "of its own; too low ends long workflows as `partial`, too high lets an endless "
            "workflow take much of the model's time",
        ),
    ] = 24
    tokens_max: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="Tokens that the model may write in the steps of a workflow; a workflow "
            "that needs more ends as `partial`",
        ),
    ] = 8_192

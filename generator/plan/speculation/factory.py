"""The policies of speculation by the names of the settings. Pure."""

from __future__ import annotations

from typing import Literal

from generator.plan.speculation.auto import Auto
from generator.plan.speculation.likely import Likely
from generator.plan.speculation.none import NoSpeculation
from generator.plan.speculation.protocol import SpeculationPolicy

SpeculationName = Literal["none", "auto"]


def make_policy(name: SpeculationName) -> SpeculationPolicy:
    """Returns a policy; `auto` is `likely` while warm-ups pay."""
    return NoSpeculation() if name == "none" else Auto(Likely())

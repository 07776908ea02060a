"""The policies of speculation by the names of the settings. Pure."""

from __future__ import annotations

from typing import Literal

from generator.plan.speculation.aquapipe import AquaPipe
from generator.plan.speculation.auto import Auto
from generator.plan.speculation.hedrarag import HedraRag
from generator.plan.speculation.likely import Likely
from generator.plan.speculation.none import NoSpeculation
from generator.plan.speculation.protocol import SpeculationPolicy
from generator.plan.speculation.ragcache import RagCache
from generator.plan.speculation.stable import Stable

SpeculationName = Literal["none", "stable", "likely", "ragcache", "aquapipe", "hedrarag", "auto"]


def make_policy(name: SpeculationName) -> SpeculationPolicy:
    """Returns a policy; `auto` is `likely` while warm-ups pay."""
    match name:
        case "none":
            return NoSpeculation()
        case "stable":
            return Stable()
        case "likely":
            return Likely()
        case "ragcache":
            return RagCache()
        case "aquapipe":
            return AquaPipe()
        case "hedrarag":
            return HedraRag()
        case "auto":
            return Auto(Likely())

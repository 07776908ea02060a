"""`none`: no warm-ups. Pure."""

from __future__ import annotations

from generator.plan.speculation.protocol import EngineLoad, SpeculationAction, SpeculationEvent


class NoSpeculation:
    """Implements `SpeculationPolicy`. Use it where searches take milliseconds."""

    def step(self, event: SpeculationEvent, load: EngineLoad) -> tuple[SpeculationAction, ...]:
        """Does nothing."""
        return ()

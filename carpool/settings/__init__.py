"""How is it set? Frozen sections of plain values, from defaults, a TOML file, the environment and
flags, in that order.

*Invariant:* settings are validated once, at start, all together. *Invariant:* a secret comes from
the environment only and is never printed. Absent on purpose: globals; whoever needs a value is
passed it.
"""

from carpool.settings.load import load_settings
from carpool.settings.sections import Secret, Settings, describe, environment_name

__all__ = ["Secret", "Settings", "describe", "environment_name", "load_settings"]

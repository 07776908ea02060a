"""Settings: frozen sections of values from defaults, a TOML file, the environment and flags.

*Invariant:* settings are validated once, at start, all together. *Invariant:* a secret comes from
the environment only and is never printed. Absent on purpose: globals; values are passed in.
"""

from carpool.settings.load import CONFIG_VARIABLE, load_settings, settings_file
from carpool.settings.sections import SECTIONS, Secret, Settings, describe, environment_name

__all__ = [
    "CONFIG_VARIABLE",
    "SECTIONS",
    "Secret",
    "Settings",
    "describe",
    "environment_name",
    "load_settings",
    "settings_file",
]

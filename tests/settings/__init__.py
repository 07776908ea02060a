"""Settings from defaults, files, the environment and flags."""

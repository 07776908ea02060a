"""The seed of tests whose faults are drawn at random: `SEED`, as `make nightly` sets it, or 5."""

from __future__ import annotations

import os

SEED = int(os.environ.get("SEED", "5"))

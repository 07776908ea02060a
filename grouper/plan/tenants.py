"""The weights of tenants, as in the settings: `acme=4, free=1`."""

from __future__ import annotations

WEIGHT_MAX = 1_000


def parse_weights(text: str) -> dict[str, int]:
    """Returns weights by tenant. Raises `ValueError` that names the invalid entry."""
    weights: dict[str, int] = {}
    for entry in filter(None, map(str.strip, text.split(","))):
        tenant, equals, weight = (part.strip() for part in entry.rpartition("="))
        if not (
            equals
            and tenant
            and weight.isascii()
            and weight.isdigit()
            and 1 <= int(weight) <= WEIGHT_MAX
        ):
            raise ValueError(
                f"{entry!r} is no TENANT=WEIGHT with a whole weight from 1 to {WEIGHT_MAX}"
            )
        weights[tenant] = int(weight)
    return weights

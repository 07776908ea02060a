"""Relations between the settings of the grouper are checked together."""

from __future__ import annotations

import pytest

from grouper.plan.tenants import parse_weights
from grouper.settings import GrouperSettings


def test_weights_of_tenants_are_read_and_what_is_none_is_refused_by_name() -> None:
    assert parse_weights(" acme=4, free = 1,,a=b=2 ") == {"acme": 4, "free": 1, "a=b": 2}
    assert parse_weights("") == {}
    for weight in ("", "=", "=0", "=-1", "=1.5", "=1001", "=²"):
        with pytest.raises(ValueError, match="is no TENANT=WEIGHT"):
            parse_weights(f"acme{weight}")
    (problem,) = GrouperSettings(tenant_weights="=3").check()
    assert problem.startswith("tenant_weights: ")

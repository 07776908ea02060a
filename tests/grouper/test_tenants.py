"""What tenants weigh, as the setting says it."""

from __future__ import annotations

import pytest

from grouper.plan.tenants import parse_weights
from grouper.settings import GrouperSettings


def test_weights_are_read_by_tenant() -> None:
    assert parse_weights(" acme=4, free = 1,,a=b=2 ") == {"acme": 4, "free": 1, "a=b": 2}
    assert parse_weights("") == {}


@pytest.mark.parametrize(
    "text", ["acme", "acme=", "=3", "acme=0", "acme=-1", "acme=1.5", "acme=1001", "acme=²"]
)
def test_what_is_no_weight_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="is no TENANT=WEIGHT"):
        parse_weights(text)
    (problem,) = GrouperSettings(tenant_weights=text).check()
    assert problem.startswith("tenant_weights: ")

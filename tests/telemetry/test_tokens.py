"""Tokens are counted by kind and tenant, and tenants cannot make the page of metrics grow."""

from __future__ import annotations

import pytest

from carpool.telemetry import tokens as tokens_module
from carpool.telemetry.metrics import Metrics


def counts(metrics: Metrics) -> dict[tuple[str, str], float]:
    return {
        (sample.labels["kind"], sample.labels["tenant"]): sample.value
        for family in metrics.registry.collect()
        if family.name == "carpool_tokens"
        for sample in family.samples
        if sample.name == "carpool_tokens_total"
    }


def test_tenants_that_come_later_than_the_first_ones_are_counted_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokens_module, "TENANTS_MAX", 2)
    metrics = Metrics()
    tokens = metrics.generator.tokens
    tokens.add("output", "nothing", 0)
    for tenant in ("a", "b", "c", "d", "a", ""):
        tokens.add("computed", tenant, 10)
    tokens.add("output", "b", 10)
    assert counts(metrics) == {
        ("computed", "a"): 20,
        ("computed", "b"): 10,
        ("output", "b"): 10,
        ("computed", "other"): 20,
        ("computed", "none"): 10,
    }

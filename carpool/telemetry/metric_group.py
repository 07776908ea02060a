"""How metrics are declared: a group of one registry, and the functions that make each kind."""

from __future__ import annotations

from functools import partial
from typing import cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SHORT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5)
SECONDS = (*SHORT_SECONDS, 1, 2.5, 5, 10, 30, 60, 120)
STEPS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 64)
COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500)


class MetricGroup:
    """Metrics of one registry: each attribute of a subclass says how one is made."""

    def __init__(self, registry: CollectorRegistry) -> None:
        for name, make in vars(type(self)).items():
            if isinstance(make, partial):
                setattr(self, name, make(registry=registry))


def counter(name: str, means: str, *labels: str) -> Counter:
    return cast(Counter, partial(Counter, f"carpool_{name}", means, labels))


def gauge(name: str, means: str, *labels: str) -> Gauge:
    return cast(Gauge, partial(Gauge, f"carpool_{name}", means, labels))


def histogram(name: str, means: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
    made = partial(Histogram, f"carpool_{name}", means, labels, buckets=buckets)
    return cast(Histogram, made)


def seconds(name: str, means: str, *labels: str) -> Histogram:
    return histogram(name, means, SECONDS, *labels)

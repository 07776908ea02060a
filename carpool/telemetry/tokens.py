"""Counts tokens by kind and tenant: what answers cost at the LLM server, and what was saved."""

from __future__ import annotations

import threading
from typing import Literal

from prometheus_client import Counter

TokenKind = Literal[
    "computed", "cached", "output", "broken", "reused", "warmed_used", "warmed_in_vain"
]
NO_TENANT = "none"
OTHER = "other"
TENANTS_MAX = 100


class TokenCounter:
    """Counts tokens by kind and tenant. Thread-safe.

    The first `TENANTS_MAX` tenants have a count of their own, later ones are `other`, so that no
    sender makes the page of metrics grow without end. Questions without a tenant are `none`.
    """

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._tenants: set[str] = set()
        self._lock = threading.Lock()

    def add(self, kind: TokenKind, tenant: str, tokens: int) -> None:
        """Adds tokens of a tenant, as `schemas.headers.tenant_of` returns it: "" for none."""
        if tokens:
            self._counter.labels(kind=kind, tenant=self._label(tenant)).inc(tokens)

    def _label(self, tenant: str) -> str:
        if not tenant:
            return NO_TENANT
        with self._lock:
            if tenant not in self._tenants:
                if len(self._tenants) >= TENANTS_MAX:
                    return OTHER
                self._tenants.add(tenant)
        return tenant

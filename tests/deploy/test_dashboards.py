"""Dashboards and alerts speak only of metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from carpool.telemetry.metrics import Metrics

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def exported() -> set[str]:
    families = list(Metrics().registry.collect())
    names = {family.name for family in families} | {
        f"{family.name}_total" for family in families if family.type == "counter"
    }
    return names | {
        f"{family.name}_{part}"
        for family in families
        if family.type == "histogram"
        for part in ("bucket", "sum", "count")
    }


def test_every_panel_and_alert_asks_for_a_metric_that_is_exported() -> None:
    dashboard = json.loads((DEPLOY / "grafana/dashboards/carpool.json").read_text(encoding="utf-8"))
    alerts = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    names = {name for expression in asked for name in re.findall(r"\bcarpool_\w+", expression)}
    assert names
    assert names - exported() == set()

"""The Kubernetes manifests: valid, hardened, and they name what the services have."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest
import yaml

from carpool.kafka.settings import KafkaSettings
from carpool.loop.loop import CLOSE_US
from carpool.run_service import DRAIN_US
from carpool.settings import load_settings
from carpool.telemetry.metrics import Metrics
from cli.services import INPUTS
from cli.settings import CarpoolSettings
from tests.deploy.test_compose import services as compose_services

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"


def definitions(name: str) -> dict[str, Any]:
    content = gzip.decompress((Path(__file__).parent / name).read_bytes())
    found: dict[str, Any] = json.loads(content)["definitions"]
    return found


SCHEMAS = definitions("kubernetes-1.34.schema.json.gz") | definitions(
    "custom-resources.schema.json.gz"
)
"""The schemas of Kubernetes 1.34, KEDA 2.16 and Prometheus operator 0.80 (Apache-2.0, see NOTICE);
unknown fields are refused.
"""
PROMETHEUS_TRIGGER = {"serverAddress", "query", "threshold", "ignoreNullValues"}
"""Parameters of KEDA's Prometheus trigger that are used here; its schema allows any."""


@cache
def manifests(folder: Path) -> str:
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl, to build the manifests as `kubectl apply -k` does")
    done = subprocess.run(
        ["kubectl", "kustomize", folder], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def built(folder: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(manifests(folder)))


def named(kind: str, folder: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """The documents of a kind by name, without `carpool-`."""
    return {
        it["metadata"]["name"].removeprefix("carpool-"): it
        for it in built(folder)
        if it["kind"] == kind
    }


def pods() -> dict[str, dict[str, Any]]:
    return {
        name: it["spec"]["template"] for name, it in (named("StatefulSet") | named("Job")).items()
    }


def problems(document: dict[str, Any]) -> list[str]:
    kind = document["kind"]
    schema = {"$ref": f"#/definitions/{kind}", "definitions": SCHEMAS}
    found = jsonschema.Draft7Validator(schema).iter_errors(document)
    return [f"{kind} {document['metadata']['name']} {it.json_path}: {it.message}" for it in found]


@pytest.mark.parametrize("folder", [FOLDER, FOLDER / "scaling"], ids=["services", "scaling"])
def test_the_manifests_are_valid_and_a_wrong_field_would_be_found(folder: Path) -> None:
    documents = built(folder)
    assert [problem for document in documents for problem in problems(document)] == []
    for document in documents:
        holder = document.get("spec", document)
        holder["replcas"] = 2
        assert problems(document)


def test_every_pod_gives_up_what_it_does_not_need_and_has_the_settings() -> None:
    assert pods().keys() == {*INPUTS, "index", "topics"}
    for pod in (it["spec"] for it in pods().values()):
        (container,) = pod["containers"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False, "CARPOOL_KAFKA_SERVICE_HOST is no setting"
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "memory" in container["resources"]["limits"]
        assert any(mount["mountPath"] == "/tmp" for mount in container["volumeMounts"])


def test_the_gateway_is_valid_hardened_and_has_its_settings_and_ports() -> None:
    text = (FOLDER / "gateway" / "gateway.yaml").read_text(encoding="utf-8")
    documents = {it["kind"]: it for it in yaml.safe_load_all(text)}  # needs no kubectl
    assert [problem for each in documents.values() for problem in problems(each)] == []
    pod = documents["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    common = yaml.safe_load((FOLDER / "every-pod.yaml").read_text(encoding="utf-8"))
    hardened = common["spec"]["template"]["spec"]
    assert pod["securityContext"] == hardened["securityContext"]
    assert container["securityContext"] == hardened["containers"][0]["securityContext"]
    assert not (pod["automountServiceAccountToken"] or pod["enableServiceLinks"])
    settings = yaml.safe_load((FOLDER / "settings.yaml").read_text(encoding="utf-8"))["data"]
    environ = settings | {it["name"]: it["value"] for it in container["env"]}
    found = load_settings(CarpoolSettings, file=None, environ=environ)
    ports = {it["containerPort"] for it in container["ports"]}
    assert ports == {found.gateway.port, found.http.port}
    spec = documents["NetworkPolicy"]["spec"]
    assert ports == {port["port"] for rule in spec["ingress"] for port in rule["ports"]}
    assert found.gateway.keys_file.startswith(container["volumeMounts"][1]["mountPath"])


def test_each_pod_has_its_own_secret_and_reaches_only_the_ports_that_it_needs() -> None:
    (settings,) = (it["data"] for it in named("ConfigMap").values())
    kafka = int(settings["CARPOOL_KAFKA_BOOTSTRAP"].rpartition(":")[2])
    llm = urlsplit(settings["CARPOOL_LLM_BASE_URL"]).port
    metrics = int(settings["CARPOOL_HTTP_PORT"])
    ports = {name: ({metrics}, {53, kafka}) for name in INPUTS}
    ports |= {"generator": ({metrics}, {53, kafka, llm})}
    ports |= {"topics": (set(), {53, kafka}), "index": (set(), set())}
    policies = named("NetworkPolicy")
    assert pods().keys() == policies.keys() == ports.keys()
    for name, wanted in ports.items():
        pod, spec = pods()[name], policies[name]["spec"]
        assert spec["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        assert spec["policyTypes"] == ["Ingress", "Egress"]
        opened = tuple(
            {port["port"] for rule in spec.get(way, ()) for port in rule["ports"]}
            for way in ("ingress", "egress")
        )
        assert opened == wanted
        (container,) = pod["spec"]["containers"]
        secrets = [it["secretRef"]["name"] for it in container["envFrom"] if "secretRef" in it]
        assert secrets == ([] if name == "index" else [f"carpool-{name}"])
        assert container["envFrom"][0] == {"configMapRef": {"name": "carpool"}}


def test_pods_are_named_members_and_settings_are_those_of_the_compose_stack() -> None:
    settings = named("ConfigMap")["carpool"]["data"]
    for service in INPUTS:
        compose = compose_services()[service]
        (container,) = pods()[service]["spec"]["containers"]
        assert container["args"] == compose["command"]
        assert {
            "name": "CARPOOL_KAFKA_INSTANCE_ID",
            "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}},
        } in container["env"]
        for name, value in compose["environment"].items():
            if not value.startswith("${"):
                assert settings[name] == value
        of_pod = dict.fromkeys((it["name"] for it in container["env"]), "x")
        load_settings(CarpoolSettings, file=None, environ=settings | of_pod)
        assert settings["CARPOOL_HTTP_PORT"] == str(container["ports"][0]["containerPort"])
        assert {
            container[f"{name}Probe"]["httpGet"]["path"]
            for name in ("startup", "liveness", "readiness")
        } == {"/healthz", "/readyz"}


def test_an_upgrade_applies_one_part_after_the_other_by_its_label() -> None:
    parts = [
        (it["kind"], it["metadata"]["name"])
        for part in ("topics", "generator", "searcher", "grouper", "indexer")
        for it in built(FOLDER)
        if it["metadata"]["labels"].get("carpool/service") == part
    ]
    services = ("generator", "searcher", "grouper", "indexer")
    wanted = [("StatefulSet", f"carpool-{name}") for name in services]
    assert parts == [("Job", "carpool-topics"), *wanted]


@pytest.mark.parametrize("service", INPUTS)
def test_a_service_is_given_the_time_that_it_takes_to_end(service: str) -> None:
    grace_s = pods()[service]["spec"]["terminationGracePeriodSeconds"]
    assert grace_s * 1_000_000 > DRAIN_US + CLOSE_US
    assert compose_services()[service]["stop_grace_period"] == f"{grace_s}s"


def test_services_scale_by_a_metric_that_exists_up_to_the_number_of_partitions() -> None:
    metric = "carpool_lag_records"
    assert metric in {each.name for each in Metrics().registry.collect()}
    specs = [it["spec"] for it in named("ScaledObject", FOLDER / "scaling").values()]
    found = {spec["scaleTargetRef"]["name"].removeprefix("carpool-"): spec for spec in specs}
    shared = {name for name, topic in INPUTS.items() if topic.partition_by != "lane"}
    assert found.keys() == shared, "kafka.lanes is 1"
    for service, spec in found.items():
        scaled, target = named("StatefulSet")[service], spec["scaleTargetRef"]
        assert (target["apiVersion"], target["kind"]) == (scaled["apiVersion"], scaled["kind"])
        assert "replicas" not in scaled["spec"], "`apply` would reset a number of replicas"
        (trigger,) = spec["triggers"]
        assert trigger["metadata"].keys() == PROMETHEUS_TRIGGER
        assert f'{metric}{{service="{service}"}}' in trigger["metadata"]["query"]
        assert spec["maxReplicaCount"] == KafkaSettings().partitions
        assert spec["minReplicaCount"] == 1


def test_scraped_metrics_have_the_labels_that_alerts_name() -> None:
    (monitor,) = (it for it in built(FOLDER / "scaling") if it["kind"] == "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    labels = {it["targetLabel"]: it for it in endpoint["relabelings"]}
    assert labels["job"]["replacement"] == "carpool"
    (source,) = labels["service"]["sourceLabels"]
    services = [pods()[service] for service in INPUTS]
    meta = "__meta_kubernetes_pod_label_"
    assert {
        value
        for pod in services
        for name, value in pod["metadata"]["labels"].items()
        if meta + re.sub(r"[^a-zA-Z0-9_]", "_", name) == source
    } == set(INPUTS)
    for pod in services:
        wanted = monitor["spec"]["selector"]["matchLabels"]
        assert wanted.items() <= pod["metadata"]["labels"].items()
        (container,) = pod["spec"]["containers"]
        assert endpoint["port"] in {port["name"] for port in container["ports"]}

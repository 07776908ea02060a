"""The Kubernetes manifests: valid, hardened, and they name what the services have."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from carpool.kafka.settings import KafkaSettings
from carpool.telemetry.metrics import Metrics
from cli.services import INPUTS
from tests.deploy.test_compose import services as compose_services

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
SCHEMA = json.loads(
    gzip.decompress((Path(__file__).parent / "kubernetes-1.34.schema.json.gz").read_bytes())
)
"""The schemas of Kubernetes 1.34 (Apache-2.0, see NOTICE); unknown fields are refused."""

TEXT = {"type": "string", "minLength": 1}
COUNT = {"type": "integer", "minimum": 0}


def fields(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": required | optional,
        "required": list(required),
        "additionalProperties": False,
    }


TRIGGER = fields(
    {
        "type": {"const": "prometheus"},
        "metadata": fields({"serverAddress": TEXT, "query": TEXT, "threshold": TEXT}),
    }
)
MORE_KINDS = {
    "ScaledObject": fields(
        {
            "apiVersion": {"const": "keda.sh/v1alpha1"},
            "kind": TEXT,
            "metadata": fields({"name": TEXT}),
            "spec": fields(
                {
                    "scaleTargetRef": fields({"name": TEXT, "kind": TEXT}),
                    "triggers": {"type": "array", "items": TRIGGER, "minItems": 1},
                },
                minReplicaCount=COUNT,
                maxReplicaCount=COUNT,
                cooldownPeriod=COUNT,
                advanced=fields(
                    {"horizontalPodAutoscalerConfig": fields({"behavior": {"type": "object"}})}
                ),
            ),
        }
    ),
    "PodMonitor": fields(
        {
            "apiVersion": {"const": "monitoring.coreos.com/v1"},
            "kind": TEXT,
            "metadata": fields({"name": TEXT}),
            "spec": fields(
                {
                    "selector": {"type": "object"},
                    "podMetricsEndpoints": {
                        "type": "array",
                        "items": fields({"port": TEXT}, interval=TEXT, relabelings={}),
                    },
                }
            ),
        }
    ),
}
"""KEDA's and the Prometheus operator's fields that are used here, from their documentation."""


def built(folder: Path) -> list[dict[str, Any]]:
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl, to build the manifests as `kubectl apply -k` does")
    done = subprocess.run(
        ["kubectl", "kustomize", folder], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def problems(document: dict[str, Any]) -> list[str]:
    kind = document["kind"]
    schema = MORE_KINDS.get(kind) or {"$ref": f"#/definitions/{kind}", **SCHEMA}
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
    pods = {
        document["metadata"]["name"]: document["spec"]["template"]["spec"]
        for document in built(FOLDER)
        if document["kind"] in ("StatefulSet", "Job")
    }
    assert pods.keys() == {f"carpool-{name}" for name in (*INPUTS, "index", "topics")}
    for pod in pods.values():
        (container,) = pod["containers"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"configMapRef": {"name": "carpool"}} in container["envFrom"]
        assert "memory" in container["resources"]["limits"]
        assert any(mount["mountPath"] == "/tmp" for mount in container["volumeMounts"])


def test_pods_are_named_members_and_settings_are_those_of_the_compose_stack() -> None:
    documents = {(it["kind"], it["metadata"]["name"]): it for it in built(FOLDER)}
    settings = documents["ConfigMap", "carpool"]["data"]
    for service in INPUTS:
        compose = compose_services()[service]
        spec = documents["StatefulSet", f"carpool-{service}"]["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        assert container["args"] == compose["command"]
        assert {
            "name": "CARPOOL_KAFKA_INSTANCE_ID",
            "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}},
        } in container["env"]
        assert f"{spec['terminationGracePeriodSeconds']}s" == compose["stop_grace_period"]
        for name, value in compose["environment"].items():
            if not value.startswith("${"):
                assert settings[name] == value
        assert settings["CARPOOL_HTTP_PORT"] == str(container["ports"][0]["containerPort"])


def test_services_scale_by_a_metric_that_exists_up_to_the_number_of_partitions() -> None:
    metric = "carpool_lag_records"
    names = {sample.name for sample in Metrics().registry.collect()}
    assert metric in names
    scaled = [it["spec"] for it in built(FOLDER / "scaling") if it["kind"] == "ScaledObject"]
    assert len(scaled) == len(INPUTS)
    for spec in scaled:
        service = spec["scaleTargetRef"]["name"].removeprefix("carpool-")
        assert service in INPUTS
        assert f'{metric}{{service="{service}"}}' in spec["triggers"][0]["metadata"]["query"]
        assert spec["maxReplicaCount"] == KafkaSettings().partitions
        assert spec["minReplicaCount"] == 1

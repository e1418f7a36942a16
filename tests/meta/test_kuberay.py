"""The manifest for KubeRay: YAML of fields that there are, settings that load, and nodes that have what the workers ask for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from foveate.assembly.checks import check
from foveate.assembly.runtime import needs_of
from foveate.runtime.port import WorkerSpec
from foveate.settings import Settings, load

ROOT = Path(__file__).parents[2]
MANIFEST = ROOT / "deploy/kuberay/foveate.yaml"
# Of KubeRay's API, ray.io/v1.
CLUSTER_FIELDS = {"rayVersion", "headGroupSpec", "workerGroupSpecs"}
HEAD_FIELDS = {"rayStartParams", "template"}
GROUP_FIELDS = HEAD_FIELDS | {"groupName", "replicas", "minReplicas", "maxReplicas"}


def documents() -> dict[str, Any]:
    found = list(yaml.safe_load_all(MANIFEST.read_text()))
    return {document["kind"]: document for document in found}


def settings(tmp_path: Path) -> Settings:
    file = tmp_path / "foveate.yaml"
    file.write_text(documents()["ConfigMap"]["data"]["foveate.yaml"])
    return load({}, config=str(file))


def groups() -> dict[str, Any]:
    return {group["groupName"]: group for group in documents()["RayCluster"]["spec"]["workerGroupSpecs"]}


def capacity(group: Any) -> dict[str, float]:
    """What a node of the group has, by Ray's names: KubeRay takes processors and GPUs from the container's limits."""
    (container,) = group["template"]["spec"]["containers"]
    limits = container["resources"]["limits"]
    own = json.loads(json.loads(group["rayStartParams"]["resources"].strip("'")))
    return {"CPU": float(limits["cpu"]), "GPU": float(limits.get("nvidia.com/gpu", 0)), **own}


def test_fields() -> None:
    found = documents()
    assert set(found) == {"RayCluster", "ConfigMap", "Deployment", "Service"}
    cluster = found["RayCluster"]
    assert cluster["apiVersion"] == "ray.io/v1"
    assert set(cluster["spec"]) == CLUSTER_FIELDS
    assert set(cluster["spec"]["headGroupSpec"]) == HEAD_FIELDS
    for group in groups().values():
        assert set(group) == GROUP_FIELDS
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        for mount in group["template"]["spec"]["containers"][0]["volumeMounts"]:
            assert mount["name"] in {volume["name"] for volume in group["template"]["spec"]["volumes"]}
    assert f"ray=={cluster['spec']['rayVersion']}" in (ROOT / "constraints.txt").read_text().splitlines()


def test_the_gateway_finds_the_cluster_and_its_clients_the_gateway(tmp_path: Path) -> None:
    found = documents()
    pod = found["Deployment"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert f"--address={found['RayCluster']['metadata']['name']}-head-svc:6379" in container["args"][0]
    assert found["Service"]["spec"]["selector"] == pod["metadata"]["labels"]
    assert container["ports"][0]["containerPort"] == settings(tmp_path).server.port


def test_its_settings_are_taken(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    check(chosen)
    assert chosen.runtime.kind == "ray"


def test_every_worker_has_a_node_of_its_role(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    needs = needs_of(chosen)
    counts = {"media": chosen.media.workers, "encoder": chosen.topology.encoders, "engine": chosen.engine.count}
    for role, count in counts.items():
        wanted = needs(WorkerSpec(role, 0, "", None, None, None))
        nodes = groups()[role]
        have = capacity(nodes)
        assert set(wanted) <= set(have), role
        each = min(int(have[name] // amount) for name, amount in wanted.items())
        assert each * nodes["replicas"] >= count, role
        for other in set(groups()) - {role}:
            assert not set(wanted) <= {name for name, amount in capacity(groups()[other]).items() if amount}, (
                role,
                other,
            )

"""The manifests for KubeRay: fields that there are, settings that load, nodes that have what workers ask for, an application to import."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from foveate.api.app import OPEN_MAX
from foveate.assembly.checks import check
from foveate.assembly.runtime import needs_of
from foveate.core.errors import StartupError
from foveate.runtime.port import WorkerSpec
from foveate.settings import Settings, load

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "deploy/kuberay/foveate.yaml"
SERVICE = ROOT / "deploy/kuberay/rayservice.yaml"
both = pytest.mark.parametrize("manifest", [CLUSTER, SERVICE], ids=lambda path: path.stem)
# Of KubeRay's API, ray.io/v1: those of its fields that the manifests use.
SERVICE_FIELDS = {"serveConfigV2", "rayClusterConfig"}
CLUSTER_FIELDS = {"rayVersion", "headGroupSpec", "workerGroupSpecs"}
HEAD_FIELDS = {"rayStartParams", "template"}
GROUP_FIELDS = HEAD_FIELDS | {"groupName", "replicas", "minReplicas", "maxReplicas"}


def documents(manifest: Path) -> dict[str, Any]:
    found = list(yaml.safe_load_all(manifest.read_text()))
    return {document["kind"]: document for document in found}


def settings(manifest: Path, tmp_path: Path) -> Settings:
    file = tmp_path / "foveate.yaml"
    file.write_text(documents(manifest)["ConfigMap"]["data"]["foveate.yaml"])
    return load({}, config=str(file))


def cluster(manifest: Path) -> dict[str, Any]:
    """The cluster's spec, which a RayService has within its own."""
    found = documents(manifest)
    spec = found["RayCluster"]["spec"] if "RayCluster" in found else found["RayService"]["spec"]["rayClusterConfig"]
    return dict(spec)


def groups(manifest: Path) -> dict[str, Any]:
    return {group["groupName"]: group for group in cluster(manifest)["workerGroupSpecs"]}


def served() -> dict[str, Any]:
    return dict(yaml.safe_load(documents(SERVICE)["RayService"]["spec"]["serveConfigV2"]))


def capacity(group: Any) -> dict[str, float]:
    """What a node of the group has, by Ray's names: KubeRay takes processors and GPUs from the container's limits."""
    (container,) = group["template"]["spec"]["containers"]
    limits = container["resources"]["limits"]
    own = json.loads(json.loads(group["rayStartParams"]["resources"].strip("'")))
    return {"CPU": float(limits["cpu"]), "GPU": float(limits.get("nvidia.com/gpu", 0)), **own}


@both
def test_fields(manifest: Path) -> None:
    kinds = {"RayCluster", "ConfigMap", "Deployment", "Service"} if manifest == CLUSTER else {"RayService", "ConfigMap"}
    found = documents(manifest)
    assert set(found) == kinds
    owner = found["RayCluster"] if manifest == CLUSTER else found["RayService"]
    assert owner["apiVersion"] == "ray.io/v1"
    assert set(owner["spec"]) == (CLUSTER_FIELDS if manifest == CLUSTER else SERVICE_FIELDS)
    spec = cluster(manifest)
    assert set(spec) == CLUSTER_FIELDS
    assert set(spec["headGroupSpec"]) == HEAD_FIELDS
    assert f"ray=={spec['rayVersion']}" in (ROOT / "constraints.txt").read_text().splitlines()
    for group in groups(manifest).values():
        assert set(group) == GROUP_FIELDS
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        for mount in group["template"]["spec"]["containers"][0]["volumeMounts"]:
            assert mount["name"] in {volume["name"] for volume in group["template"]["spec"]["volumes"]}


def test_the_gateway_finds_the_cluster_and_its_clients_the_gateway(tmp_path: Path) -> None:
    found = documents(CLUSTER)
    pod = found["Deployment"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert f"--address={found['RayCluster']['metadata']['name']}-head-svc:6379" in container["args"][0]
    assert found["Service"]["spec"]["selector"] == pod["metadata"]["labels"]
    assert container["ports"][0]["containerPort"] == settings(CLUSTER, tmp_path).server.port


@both
def test_its_settings_are_taken(manifest: Path, tmp_path: Path) -> None:
    chosen = settings(manifest, tmp_path)
    check(chosen)
    assert chosen.runtime.kind == "ray"


@both
def test_every_worker_has_a_node_of_its_role(manifest: Path, tmp_path: Path) -> None:
    chosen = settings(manifest, tmp_path)
    needs = needs_of(chosen)
    counts = {"media": chosen.media.workers, "encoder": chosen.topology.encoders, "engine": chosen.engine.count}
    for role, count in counts.items():
        wanted = needs(WorkerSpec(role, 0, "", None, None, None))
        nodes = groups(manifest)[role]
        have = capacity(nodes)
        assert set(wanted) <= set(have), role
        each = min(int(have[name] // amount) for name, amount in wanted.items())
        assert each * nodes["replicas"] >= count, role
        for other in set(groups(manifest)) - {role}:
            there = {name for name, amount in capacity(groups(manifest)[other]).items() if amount}
            assert not set(wanted) <= there, (role, other)


def test_serve_finds_the_application() -> None:
    """That it takes the rest of its configuration is shown where it runs by it (tests/blackbox/test_ray_serve.py)."""
    (application,) = served()["applications"]
    module, _, name = application["import_path"].partition(":")
    build = getattr(importlib.import_module(module), name)
    with pytest.raises(StartupError, match="config"):
        build({**application["args"], "port": "8000"})
    (deployment,) = application["deployments"]
    assert (deployment["num_replicas"], deployment["max_ongoing_requests"]) == (1, OPEN_MAX)


def test_the_gateway_has_a_node_with_its_settings_and_a_port() -> None:
    """KubeRay takes the service's port from the container's that is called serve."""
    (application,) = served()["applications"]
    (deployment,) = application["deployments"]
    node = groups(SERVICE)["gateway"]
    have = capacity(node)
    wanted = {"CPU": deployment["ray_actor_options"]["num_cpus"], **deployment["ray_actor_options"]["resources"]}
    assert all(have[name] >= amount for name, amount in wanted.items())
    (container,) = node["template"]["spec"]["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    directory, _, file = application["args"]["config"].rpartition("/")
    assert mounts["settings"] == directory
    assert file in documents(SERVICE)["ConfigMap"]["data"]
    (head,) = cluster(SERVICE)["headGroupSpec"]["template"]["spec"]["containers"]
    for each in (container, head):
        assert {"containerPort": served()["http_options"]["port"], "name": "serve"} in each["ports"]

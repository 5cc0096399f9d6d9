"""The manifests of deploy/kubernetes as kustomize builds them, and a validator for each kind."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml
from kubernetes_validate import utils

from tests.deploy.files import DEPLOY

FOLDER = DEPLOY / "kubernetes"
KUBECTL = Path(sys.executable).parent / "kubectl"
OVERLAYS = ("trial", "aws", "gcp")

Manifest = dict[str, Any]
utils.schema_contents = cache(utils.schema_contents)


@cache
def built(overlay: str) -> list[Manifest]:
    """Return the output of kustomize for a folder: an overlay, the base, or a folder that is applied separately."""
    made = subprocess.run(
        [KUBECTL, "kustomize", FOLDER / overlay], capture_output=True, text=True, check=True
    )
    return list(yaml.safe_load_all(made.stdout))


@cache
def built_with_backup(overlay: str) -> list[Manifest]:
    """Return the output of kustomize for an overlay that includes the component `backup`, as docs/backup.md says."""
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(FOLDER, Path(folder) / "kubernetes")
        kustomization = copy / "overlays" / overlay / "kustomization.yaml"
        kustomization.write_text(kustomization.read_text() + "components: [../../backup]\n")
        made = subprocess.run(
            [KUBECTL, "kustomize", kustomization.parent], capture_output=True, text=True, check=True
        )
    return list(yaml.safe_load_all(made.stdout))


@cache
def written() -> list[Manifest]:
    """Return every manifest as written in its file."""
    manifests = []
    for path in sorted(FOLDER.rglob("*.yaml")):
        if path.name != "kustomization.yaml":
            manifests += list(yaml.safe_load_all(path.read_text()))
    return manifests


def the(kind: str, name: str, among: list[Manifest]) -> Manifest:
    (manifest,) = [
        candidate
        for candidate in among
        if candidate["kind"] == kind and candidate["metadata"]["name"] == name
    ]
    return manifest


def template_of(manifest: Manifest) -> dict[str, Any] | None:
    """Return the template of the pods that the manifest creates, or None if it creates none."""
    if manifest["kind"] == "CronJob":
        return dict(manifest["spec"]["jobTemplate"]["spec"]["template"])
    return (
        dict(manifest["spec"]["template"])
        if manifest["kind"] in ("Deployment", "StatefulSet", "Job")
        else None
    )


def templates(among: list[Manifest]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and template of each pod, with the labels that KubeRay adds to Ray's pods."""
    for manifest in among:
        if (template := template_of(manifest)) is not None:
            yield manifest["metadata"]["name"], template
        if manifest["kind"] == "RayCluster":
            for group in groups(manifest):
                name = group.get("groupName", "head")
                labels = {
                    "ray.io/cluster": manifest["metadata"]["name"],
                    "ray.io/node-type": "worker" if "groupName" in group else "head",
                    "ray.io/group": group.get("groupName", "headgroup"),
                }
                yield name, {**group["template"], "metadata": {"labels": labels}}


def pods(among: list[Manifest]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, template in templates(among):
        yield name, template["spec"]


def groups(cluster: Manifest) -> list[dict[str, Any]]:
    return [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]


def check(manifest: Manifest, version: str) -> None:
    """Check a manifest strictly against the published schema of its kind.

    Raises:
        ValueError: The manifest does not fit the schema. Kubernetes' own kinds raise the error of kubernetes_validate.
    """
    if manifest["apiVersion"].startswith("monitoring.coreos.com/"):
        by_the_prometheus_operator(manifest)
    elif manifest["kind"] == "RayCluster":
        by_kuberay(manifest, version)
    else:
        kubernetes_validate.validate(manifest, version, strict=True)


def by_the_prometheus_operator(manifest: Manifest) -> None:
    """Check a manifest with models generated from the operator's custom resource definitions.

    The models silently drop unknown keys, so the check compares the keys before and after.
    """
    from cloudcoil.models.prometheus_operator import v1

    kind = getattr(v1, manifest["kind"])
    read = kind.model_validate(manifest).model_dump(mode="json", by_alias=True, exclude_unset=True)
    if left := set(words(manifest)) - set(words(read)):
        raise ValueError(f"a {manifest['kind']} has no {', '.join(sorted(left))}")


def words(node: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of all keys."""
    pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in pairs:
        yield f"{path}/{key}"
        yield from words(value, f"{path}/{key}")


def by_kuberay(manifest: Manifest, version: str) -> None:
    """Check a manifest of KubeRay, which publishes no package of its schema.

    KubeRay's own fields are checked with the schema below, and its pod templates with the schema of Kubernetes.
    """
    for error in jsonschema.Draft202012Validator(RAY_CLUSTER).iter_errors(manifest):
        raise ValueError(f"{error.json_path}: {error.message}")
    options = manifest["spec"].get("autoscalerOptions", {})
    container_options = {name: value for name, value in options.items() if name not in OF_THE_AUTOSCALER}
    autoscaler = {"spec": {"containers": [{"name": "autoscaler", **container_options}]}}
    for template in (autoscaler, *(group["template"] for group in groups(manifest))):
        made = {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": manifest["metadata"],
            "template": template,
        }
        kubernetes_validate.validate(made, version, strict=True)


def an_object(required: tuple[str, ...] = (), **properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


TEXT, NUMBER, SWITCH, ANY = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}, {"type": "object"}
TEXTS = {"type": "object", "additionalProperties": TEXT}
GROUP = {"rayStartParams": TEXTS, "labels": TEXTS, "resources": TEXTS, "template": ANY}
# The other autoscaler options are those of a container.
OF_THE_AUTOSCALER = {
    "version": {"enum": ["v1", "v2"]},
    "upscalingMode": {"enum": ["Default", "Aggressive", "Conservative"]},
    "idleTimeoutSeconds": NUMBER,
}
# Fields of ray.io/v1 of KubeRay 1.6 and 1.7, https://ray-project.github.io/kuberay/reference/api/, read 2026-11-22.
RAY_CLUSTER = an_object(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayCluster"},
    metadata=ANY,
    spec=an_object(
        ("headGroupSpec",),
        rayVersion=TEXT,
        suspend=SWITCH,
        managedBy=TEXT,
        authOptions=an_object(
            mode={"enum": ["disabled", "token"]}, secretName=TEXT, enableK8sTokenAuth=SWITCH
        ),
        enableInTreeAutoscaling=SWITCH,
        autoscalerOptions=an_object(
            **OF_THE_AUTOSCALER,
            image=TEXT,
            imagePullPolicy=TEXT,
            resources=ANY,
            securityContext=ANY,
            env={"type": "array", "items": ANY},
            envFrom={"type": "array", "items": ANY},
            volumeMounts={"type": "array", "items": ANY},
        ),
        upgradeStrategy=an_object(type={"enum": ["Recreate", "None"]}),
        headServiceAnnotations=TEXTS,
        gcsFaultToleranceOptions=an_object(
            ("redisAddress",),
            redisAddress=TEXT,
            externalStorageNamespace=TEXT,
            redisUsername=ANY,
            redisPassword=ANY,
        ),
        headGroupSpec=an_object(
            ("template",), **GROUP, headService=ANY, serviceType=TEXT, enableIngress=SWITCH
        ),
        workerGroupSpecs={
            "type": "array",
            "items": an_object(
                ("groupName", "template", "minReplicas", "maxReplicas"),
                **GROUP,
                groupName=TEXT,
                replicas=NUMBER,
                minReplicas=NUMBER,
                maxReplicas=NUMBER,
                idleTimeoutSeconds=NUMBER,
                numOfHosts=NUMBER,
                suspend=SWITCH,
                scaleStrategy=ANY,
            ),
        },
    ),
)

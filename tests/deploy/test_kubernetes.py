"""Kubernetes and Ray accept the manifests, and names, ports, secrets, labels and prices match each other."""

import copy
import os
import runpy
import shlex
import subprocess
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.deploy.files import CONSTRAINTS, ROOT
from tests.deploy.manifests import (
    FOLDER,
    KUBECTL,
    OVERLAYS,
    built,
    built_with_backup,
    check,
    groups,
    pods,
    the,
    written,
)
from tools.checks.blocks import blocks
from tuner.cluster import nodes as its
from tuner.domain.money import Price
from tuner.planning.catalogue import Catalogue
from tuner.service.catalogue import catalogue
from tuner.settings import Settings

VERSIONS = ("1.32", "1.37")


@pytest.fixture(scope="module")
def prices() -> Catalogue:
    return catalogue(Settings.from_env({}))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_matches_the_kubernetes_schema(version: str) -> None:
    for manifest in written():
        check(manifest, version)


CONTAINER = ("spec", "headGroupSpec", "template", "spec", "containers", 0)
WRONG: list[tuple[str, tuple[str | int, ...], Any]] = [
    # Unknown keys.
    ("Deployment", ("spec", "template", "spec", "containers", 0, "livenesProbe"), {}),
    ("RayCluster", ("spec", "autoscalerOption"), {}),
    ("RayCluster", ("spec", "workerGroupSpecs", 1, "maxReplica"), 3),
    ("RayCluster", (*CONTAINER, "imag"), "tuner"),
    ("RayCluster", ("spec", "autoscalerOptions", "resources", "request"), {}),
    ("RayCluster", ("metadata", "nam"), "tuner"),
    ("ServiceMonitor", ("spec", "endpoints", 0, "intervall"), "15s"),
    ("PrometheusRule", ("spec", "groups", 0, "rules", 0, "fro"), "5m"),
    # Wrong types.
    ("Deployment", ("spec", "replicas"), "two"),
    ("RayCluster", ("spec", "workerGroupSpecs", 0, "maxReplicas"), "4"),
    ("RayCluster", ("spec", "headGroupSpec", "rayStartParams", "num-cpus"), 0),
    ("RayCluster", ("spec", "autoscalerOptions", "version"), "v3"),
    ("RayCluster", ("spec", "autoscalerOptions", "securityContext", "allowPrivilegeEscalation"), "no"),
    ("RayCluster", (*CONTAINER, "resources", "limits"), "4Gi"),
    ("ServiceMonitor", ("spec", "endpoints"), {}),
    ("PrometheusRule", ("spec", "groups", 0, "rules", 0, "labels"), ["page"]),
    # Missing keys.
    ("Deployment", ("spec", "selector"), None),
    ("RayCluster", ("spec", "headGroupSpec"), None),
    ("RayCluster", ("spec", "workerGroupSpecs", 1, "groupName"), None),
    ("RayCluster", (*CONTAINER, "name"), None),
    ("ServiceMonitor", ("spec", "selector"), None),
    ("PrometheusRule", ("spec", "groups", 0, "name"), None),
]


def test_validation_finds_each_error_in_a_manifest() -> None:
    right = written()
    for kind, path, value in WRONG:
        wrong = copy.deepcopy(the(kind, "tuner", right))
        inner: Any = wrong
        for step in path[:-1]:
            inner = inner[step]
        if value is None:
            del inner[path[-1]]
        else:
            inner[path[-1]] = value
        with pytest.raises((ValueError, kubernetes_validate.ValidationError), match=str(path[-1])):
            check(wrong, VERSIONS[0])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_built_overlay_is_valid_and_uses_its_own_namespace_and_images(overlay: str) -> None:
    among = built(f"overlays/{overlay}")
    for manifest in among:
        check(manifest, VERSIONS[0])
        assert manifest["kind"] == "Namespace" or manifest["metadata"]["namespace"] == "tuner"
    images = {c["image"] for _, pod in pods(among) for c in pod["containers"]}
    ours = {image for image in images if image.startswith("registry.example.com/tuner:")}
    assert len(ours) == 1
    assert all(":" in image for image in images)
    pod = the("Deployment", "tuner", among)["spec"]["template"]["spec"]
    (service,) = pod["containers"]
    maps = [source["configMapRef"]["name"] for source in service["envFrom"] if "configMapRef" in source]
    settings = {name: value for each in maps for name, value in the("ConfigMap", each, among)["data"].items()}
    assert settings["TUNER_STORAGE"].partition("://")[0] in ("s3", "gs")
    # A mirror in a volume that is lost with the pod would grow with the history, and be copied again by each new pod.
    assert settings["TUNER_OPTUNA_STORAGE"] == "off"
    lost = {volume["name"]: volume["emptyDir"] for volume in pod["volumes"] if "emptyDir" in volume}
    assert lost.keys() == {"home", "tmp"}
    assert all("sizeLimit" in volume for volume in lost.values())


def test_settings_of_an_overlay_take_precedence_over_those_of_the_base() -> None:
    (service,) = the("Deployment", "tuner", written())["spec"]["template"]["spec"]["containers"]
    maps = [source["configMapRef"]["name"] for source in service["envFrom"] if "configMapRef" in source]
    assert maps == ["tuner-defaults", "tuner"], "Kubernetes uses the last source that has a name"
    defaults = the("ConfigMap", "tuner-defaults", written())["data"]
    assert not defaults.keys() & {variable["name"] for variable in service["env"]}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_ray_derives_node_types_and_markets_from_the_cluster(overlay: str) -> None:
    from ray.autoscaler._private.kuberay import autoscaling_config  # takes half a second

    cluster = the("RayCluster", "tuner", built(f"overlays/{overlay}"))
    assert cluster["spec"]["rayVersion"] == CONSTRAINTS["ray"]
    node_types = autoscaling_config._derive_autoscaling_config_from_ray_cr(cluster)["available_node_types"]
    assert node_types["headgroup"]["resources"]["CPU"] == 0, "the head runs drivers and no trials"
    markets = {name: its.market_of(node_type["labels"]) for name, node_type in node_types.items()}
    assert markets == {"headgroup": "on_demand", "on-demand": "on_demand", "spot": "spot"}
    assert all(
        node_type["resources"]["CPU"] >= 1 for name, node_type in node_types.items() if name != "headgroup"
    )


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_group_prices_match_the_catalogue(overlay: str, prices: Catalogue) -> None:
    for group in groups(the("RayCluster", "tuner", built(f"overlays/{overlay}")))[1:]:
        labels = group["labels"]
        usd_per_hour, market = its.usd_per_hour(labels), its.market_of(labels)
        assert usd_per_hour is not None
        listed = [
            catalogue_offer
            for catalogue_offer in prices.find(instance_type=its.instance_type_of(labels))
            if catalogue_offer.region == its.region_of(labels)
        ]
        assert bool(listed) == (overlay != "trial")
        for offer in listed:
            price = offer.price(market)
            assert price == Price.from_usd_per_hour(usd_per_hour)


SPOT = {
    "aws": ({"eks.amazonaws.com/capacityType": "SPOT"}, {"eks.amazonaws.com/capacityType": "ON_DEMAND"}),
    "gcp": ({"cloud.google.com/gke-spot": "true"}, {}),
}


def lands(pod: dict[str, Any], machine: dict[str, str]) -> bool:
    """Return whether a pod may run on a machine with these labels."""
    node = pod.get("affinity", {}).get("nodeAffinity", {})
    terms = node.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [{}])
    expressions = [expression for term in terms for expression in term.get("matchExpressions", [])]
    assert {expression["operator"] for expression in expressions} <= {"DoesNotExist"}
    without = {expression["key"] for expression in expressions}
    return pod.get("nodeSelector", {}).items() <= machine.items() and not without & set(machine)


@pytest.mark.parametrize("overlay", SPOT)
def test_pods_are_scheduled_only_on_machines_of_their_market(overlay: str) -> None:
    """No driver runs on a machine that may be preempted, and no spot trial is billed as on demand."""
    spot, on_demand = SPOT[overlay]
    for name, pod in pods([the("RayCluster", "tuner", built(f"overlays/{overlay}"))]):
        assert (lands(pod, spot), lands(pod, on_demand)) == (name == "spot", name != "spot"), name


def test_pods_run_without_root_privileges_and_with_resource_limits() -> None:
    for name, pod in pods(written()):
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["automountServiceAccountToken"] is False, name
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False, name
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, name
            assert {"cpu", "memory"} <= set(container["resources"]["requests"]), name
            assert "memory" in container["resources"]["limits"], name


def test_service_settings_are_valid_and_match_the_cluster_and_probes() -> None:
    (container,) = the("Deployment", "tuner", written())["spec"]["template"]["spec"]["containers"]
    env = {variable["name"]: variable.get("value", "given") for variable in container["env"]}
    settings = Settings.from_env({k: v for k, v in env.items() if not k.endswith("_FILE")})
    cluster = the("RayCluster", "tuner", written())
    assert settings.ray_address == f"http://{cluster['metadata']['name']}-head-svc:8265"
    assert container["ports"][0]["containerPort"] == settings.port
    for probe, path in (
        ("startupProbe", "/healthz"),
        ("livenessProbe", "/healthz"),
        ("readinessProbe", "/readyz"),
    ):
        assert container[probe]["httpGet"] == {"path": path, "port": "http"}


def test_head_and_service_mount_the_same_database_secret() -> None:
    specs = dict(pods(written()))
    mounts = {
        name: [m for m in specs[name]["containers"][0].get("volumeMounts", []) if m["name"] == "secrets"]
        for name in ("tuner", "tuner-migrate", "head")
    }
    assert mounts["tuner"] == mounts["tuner-migrate"] == mounts["head"]
    assert mounts["head"] == [{"name": "secrets", "mountPath": "/run/secrets/tuner", "readOnly": True}]
    for name in mounts:
        (volume,) = [v for v in specs[name]["volumes"] if v["name"] == "secrets"]
        assert volume["secret"]["items"] == [{"key": "database_url", "path": "database_url"}]


@pytest.mark.parametrize("url", ["", "postgresql://u:p@elsewhere/db"])
def test_secrets_script_creates_every_secret_that_pods_use(url: str) -> None:
    made = subprocess.run(
        [FOLDER / "secrets.sh"], capture_output=True, text=True, check=True, env={"DATABASE_URL": url}
    )
    secrets = list(yaml.safe_load_all(made.stdout))
    for secret in secrets:
        kubernetes_validate.validate(secret, VERSIONS[0], strict=True)
    there = {created_secret["metadata"]["name"]: created_secret["stringData"] for created_secret in secrets}
    assert there["tuner"]["database_url"] == url or "@database:5432/tuner" in there["tuner"]["database_url"]
    assert ("tuner-storage" in there) == (not url)
    (endpoint,) = the("ServiceMonitor", "tuner", written())["spec"]["endpoints"]
    key = endpoint["authorization"]["credentials"]
    assert key["key"] in there[key["name"]]
    trial = {"database", "storage", "bucket"}
    for pod, spec in pods(written()):
        for name, key in named(spec):
            if pod not in trial or not url:
                assert key in there[name], (pod, name, key)


def named(spec: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the secrets of a pod with their keys."""
    for container in spec["containers"]:
        for variable in container.get("env", []):
            if "valueFrom" in variable:
                reference = variable["valueFrom"]["secretKeyRef"]
                yield reference["name"], reference["key"]
    for volume in spec.get("volumes", []):
        for item in volume.get("secret", {}).get("items", []):
            yield volume["secret"]["secretName"], item["key"]


def test_selectors_match_the_labels_of_their_targets() -> None:
    among = written()
    cluster, deployment = the("RayCluster", "tuner", among), the("Deployment", "tuner", among)
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    # Labels that KubeRay sets on its pods.
    ray = [
        {"ray.io/cluster": "tuner", "ray.io/node-type": "head", "ray.io/group": "headgroup"},
        *(
            {"ray.io/cluster": "tuner", "ray.io/node-type": "worker", "ray.io/group": group["groupName"]}
            for group in cluster["spec"]["workerGroupSpecs"]
        ),
    ]
    for budget in (manifest for manifest in among if manifest["kind"] == "PodDisruptionBudget"):
        wanted = budget["spec"]["selector"]["matchLabels"].items()
        assert [pod_labels for pod_labels in [labels, *ray] if wanted <= pod_labels.items()], budget[
            "metadata"
        ]["name"]
    assert the("Service", "tuner", among)["spec"]["selector"] == labels
    monitor = the("ServiceMonitor", "tuner", among)["spec"]
    assert monitor["selector"]["matchLabels"] == the("Service", "tuner", among)["metadata"]["labels"]
    assert monitor["endpoints"][0]["port"] == the("Service", "tuner", among)["spec"]["ports"][0]["name"]
    assert f'"{monitor["endpoints"][0]["path"]}"' in (ROOT / "tuner/api/routers/health.py").read_text()


def test_prometheus_rule_manifest_equals_the_generated_rules() -> None:
    made = runpy.run_path(str(FOLDER / "monitoring" / "rules.py"))["manifest"]()
    assert the("PrometheusRule", "tuner", written()) == made
    assert {rule["alert"] for group in made["spec"]["groups"] for rule in group["rules"] if "alert" in rule}
    kinds = (FOLDER / "monitoring" / "kustomization.yaml").read_text()
    assert "prometheus-rule.yaml" in kinds


def test_backup_makes_room_first_and_keeps_the_newest(tmp_path: Path) -> None:
    """The volume is full, so that `tuner backup` fails. The next backup then has room."""
    job = the("CronJob", "tuner-backup", written())["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = job["containers"]
    backups, programs = tmp_path / "backups", tmp_path / "bin"
    killed, by_hand = backups / ".2026-03-01T0317.backup.x1y2", backups / ".2026-03-02T0310.backup.z3"
    for folder in (backups, programs, killed, by_hand):
        folder.mkdir()
    (programs / "tuner").write_text("#!/bin/sh\nexit 1\n")
    (programs / "tuner").chmod(0o755)
    now = time.time()
    os.utime(killed, (now - 86400, now - 86400))

    def run(days: Sequence[int]) -> list[int]:
        """Return which backups are left of those that are so many days old."""
        for age in days:
            file = backups / f"{datetime.fromtimestamp(now - age * 86400, UTC):%Y-%m-%dT%H%M}.backup"
            file.touch()
            os.utime(file, (now - age * 86400, now - age * 86400))
        done = subprocess.run(
            [*container["command"], *(word.replace("/backups", str(backups)) for word in container["args"])],
            env={"PATH": f"{programs}:{os.environ['PATH']}"},
            check=False,
        )
        assert done.returncode == 1
        assert not killed.exists()
        assert by_hand.exists(), "a backup that was started by hand may still run"
        files = [path for path in backups.iterdir() if path != by_hand]
        left = sorted(round((now - file.stat().st_mtime) / 86400) for file in files)
        for file in files:
            file.unlink()
        return left

    assert run(range(34)) == list(range(31)), "those older than thirty days are gone"
    assert run(range(40, 50)) == list(range(40, 47)), "the newest seven are kept at any age"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_restore_has_the_backups_and_the_settings_of_the_service(overlay: str) -> None:
    among = built_with_backup(overlay)
    restore = the("CronJob", "tuner-restore", among)["spec"]
    assert restore["suspend"] is True
    pod = restore["jobTemplate"]["spec"]["template"]["spec"]
    service = the("Deployment", "tuner", among)["spec"]["template"]["spec"]
    (container,), (of_service,) = pod["containers"], service["containers"]
    assert container["envFrom"] == of_service["envFrom"], "the storage, in which it looks for checkpoints"
    assert pod["serviceAccountName"] == service["serviceAccountName"], "the role for the storage"
    assert container["image"] == of_service["image"]
    backup = the("CronJob", "tuner-backup", among)["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["volumes"] == backup["volumes"]
    check(the("CronJob", "tuner-restore", among), VERSIONS[0])


def test_documented_restore_gets_the_name_of_its_backup(tmp_path: Path) -> None:
    """The Job is made as `kubectl create job --from` makes it, which needs a cluster, and the documented pipe sets the name."""
    (pipe,) = [
        line
        for block in blocks(ROOT / "docs/backup.md")
        for line in block.text.replace("|\n", "|").splitlines()
        if "--from cronjob/tuner-restore" in line
    ]
    _, set_env, apply = (shlex.split(part) for part in pipe.removesuffix(" &&").split("|"))
    assert apply == ["kubectl", "-n", "tuner", "apply", "-f", "-"]
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "tuner-restore"},
        "spec": the("CronJob", "tuner-restore", written())["spec"]["jobTemplate"]["spec"],
    }
    made = subprocess.run(
        [KUBECTL, *set_env[1:]], input=yaml.safe_dump(job), capture_output=True, text=True, check=True
    )
    manifest = yaml.safe_load(made.stdout)
    check(manifest, VERSIONS[0])
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    env = {variable["name"]: variable["value"] for variable in container["env"]}
    (tmp_path / "tuner").write_text('#!/bin/sh\necho "$*"\n')
    (tmp_path / "tuner").chmod(0o755)
    words = [*container["command"], *(word.replace("/backups", str(tmp_path)) for word in container["args"])]

    def run() -> "subprocess.CompletedProcess[str]":
        environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **env}
        return subprocess.run(words, env=environ, capture_output=True, text=True, check=False)

    assert (run().returncode, run().stderr) == (1, "set BACKUP to one of these files:\ntuner\n")
    (tmp_path / env["BACKUP"]).touch()
    assert run().stdout == f"restore {tmp_path}/{env['BACKUP']} --replace\n"

"""The scripts that start a cluster run with stand-ins for the programs of clouds, Ray and Kubernetes."""

import json
import os
import subprocess
from collections.abc import Iterable
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.clouds import CLOUDS, PROGRAMS, REGIONS, WORDS, made, program, scratch, up
from tests.deploy.files import ROOT, unit
from tests.deploy.manifests import KUBECTL, the
from tests.deploy.stand_ins import Answers, Scratch
from tools.checks.blocks import blocks
from tuner.cluster import nodes as its
from tuner.cluster.node_types import read_node_types
from tuner.service.node_prices import priced
from tuner.settings import Settings

MAKES = {
    "aws": ["s3 mb", "iam create-role", "iam create-role", "iam create-instance-profile"],
    "gcp": ["storage buckets create", "iam service-accounts create"],
    "azure": ["storage account create"],
}
CREATE = ("mb", "create-role", "create-instance-profile", "create")


def creates(calls: list[list[str]]) -> list[str]:
    """Return the create commands, except those that are idempotent: Azure's groups and containers."""
    created = [" ".join(words[1:4]) for words in calls if set(words) & set(CREATE)]
    return [
        command for command in created if not command.startswith(("group create", "storage container create"))
    ]


@pytest.mark.parametrize("cloud", CLOUDS)
def test_missing_cloud_resources_are_created_once_and_the_cluster_starts(cloud: str, tmp_path: Path) -> None:
    sandbox = scratch(cloud, tmp_path)
    url = {"TUNER_DATABASE_URL": "postgresql://tuner:a b$c'd@db.internal/tuner"}
    up(sandbox, cloud, env=url)
    calls = sandbox.called()
    did = creates(calls)
    for words in MAKES[cloud]:
        assert any(command.startswith(words) for command in did), words
        did.remove(next(command for command in did if command.startswith(words)))
    if cloud == "aws":
        machines_may_use_the_bucket_and_only_the_head_makes_others(calls)
    *_, ray_up, ray_wait = calls
    file = str(sandbox.checkout / f"deploy/ray-{cloud}/.cluster.yaml")
    assert ray_up == ["ray", "up", "--yes", file]
    assert ray_wait == ["ray", "exec", file, "bash ~/tuner/deploy/ray-node.sh wait"]
    assert any(words[0] == "pip" and words[-1].endswith(f"[{cloud}]") for words in calls)
    files = (sandbox.checkout / "deploy/.files").read_text().splitlines()
    assert sorted(files) == ["trainables/current.py", "tuner/current.py"]
    first = made(sandbox, cloud)
    settings, token = settings_that_nobody_else_reads(sandbox, cloud, first)
    assert settings.database_url == url["TUNER_DATABASE_URL"]

    program(sandbox, cloud, there=True)
    up(sandbox, cloud, env=url)
    assert creates(sandbox.called()) == []
    assert made(sandbox, cloud) == first
    assert settings_that_nobody_else_reads(sandbox, cloud, first) == (settings, token)


def machines_may_use_the_bucket_and_only_the_head_makes_others(calls: list[list[str]]) -> None:
    policies = {}
    for words in calls:
        given = dict(pairwise(words))
        if "put-role-policy" in words:
            policies[given["--role-name"]] = json.loads(given["--policy-document"])["Statement"]
        if "create-role" in words:
            assert json.loads(given["--assume-role-policy-document"])
    worker, head = (policies[f"tuner-{name}"] for name in ("worker", "head"))
    assert [statement["Resource"] for statement in worker] == [
        ["arn:aws:s3:::my-tuner-bucket", "arn:aws:s3:::my-tuner-bucket/*"]
    ]
    assert [statement["Action"] for statement in head[1:]] == [["ec2:*"], "iam:PassRole"]
    assert head[2]["Resource"] == "arn:aws:iam::123456789012:role/tuner-worker"


def settings_that_nobody_else_reads(
    scratch: Scratch, cloud: str, cluster: dict[str, Any], *, region: str | None = None
) -> tuple[Settings, str]:
    """Return the settings and the token that the machines get."""
    mounts = cluster["file_mounts"]
    assert mounts["~/tuner"] == str(scratch.checkout)
    assert mounts["~/.ray/auth_token"] == "~/.ray/auth_token"
    env, token = Path(mounts["~/tuner.env"]), scratch.home / ".ray/auth_token"
    secrets = ("compose/.env", "prometheus/api_key", f"ray-{cloud}/.cluster.yaml", f"ray-{cloud}/.tuner.env")
    for secret in secrets:
        assert is_excluded(f"deploy/{secret}", cluster["rsync_exclude"]), secret
    assert not is_excluded(env.name, cluster["rsync_exclude"])
    for path in (env, token):
        assert path.stat().st_mode & 0o777 == 0o600, path
    # Read the file as ray-node.sh does.
    read = f"set -a; . {env}; env -0"
    completed = subprocess.run(["bash", "-c", read], env={}, capture_output=True, text=True, check=True)
    values = dict(line.split("=", 1) for line in completed.stdout.split("\0") if "=" in line)
    settings = Settings.from_env(values)
    assert settings.storage.startswith({"aws": "s3://", "gcp": "gs://", "azure": "abfs://"}[cloud])
    assert settings.storage_region == (region or REGIONS[cloud])
    return settings, token.read_text()


def is_excluded(path: str, patterns: list[str]) -> bool:
    """Return whether rsync leaves out a file. A pattern with a slash at its start must match the path from the synced folder on."""
    return any(
        fnmatch(name, pattern)
        for pattern in patterns
        for name in ([f"/{path}"] if pattern.startswith("/") else path.split("/"))
    )


OTHER_REGIONS = {"aws": "eu-west-1", "gcp": "europe-west4", "azure": "westus2"}


@pytest.mark.parametrize("cloud", CLOUDS)
def test_machines_in_another_region_have_no_price_of_the_files_region(cloud: str, tmp_path: Path) -> None:
    sandbox, region = scratch(cloud, tmp_path), OTHER_REGIONS[cloud]
    words = [region if word == REGIONS[cloud] else word for word in WORDS[cloud]]
    prices = {"TUNER_NODE_PRICES": "m7i.xlarge=0.23,m7i.xlarge/spot=0.1"}
    sandbox.run(f"deploy/ray-{cloud}/up.sh", *words, env=prices)
    settings, _ = settings_that_nobody_else_reads(sandbox, cloud, made(sandbox, cloud), region=region)
    types = made(sandbox, cloud)["available_node_types"]
    for name in ("on-demand", "spot"):
        labels = types[name]["labels"]
        assert (its.region_of(labels), its.usd_per_hour(labels)) == (region, None)
        node_price = priced(settings, labels, cpus=4, gpus=1 if cloud == "azure" else 0)
        assert node_price.price is not None
        assert (region if cloud != "aws" else "TUNER_NODE_PRICES") in node_price.source


@pytest.mark.parametrize("cloud", CLOUDS)
def test_settings_for_own_code_reach_the_service(cloud: str, tmp_path: Path) -> None:
    sandbox = scratch(cloud, tmp_path)
    own = {"TUNER_ALLOWED_MODULES": "trainables,my_package", "TUNER_PACKAGES": "on"}
    sandbox.run(f"deploy/ray-{cloud}/up.sh", *WORDS[cloud], env=own)
    settings, _ = settings_that_nobody_else_reads(sandbox, cloud, made(sandbox, cloud))
    assert (settings.allowed_modules, settings.packages) == (("trainables", "my_package"), True)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_missing_arguments_print_usage_and_change_nothing(cloud: str, tmp_path: Path) -> None:
    sandbox = scratch(cloud, tmp_path)
    completed = sandbox.run(f"deploy/ray-{cloud}/up.sh", WORDS[cloud][0], status=1)
    assert "up.sh " in completed.stderr
    assert sandbox.called() == []


def test_script_stops_before_ray_up_if_the_cloud_refuses(tmp_path: Path) -> None:
    sandbox = scratch("gcp", tmp_path)
    sandbox.stand_in(PROGRAMS["gcp"], (("buckets describe", 1, ""), ("buckets create", 3, "")))
    sandbox.run("deploy/ray-gcp/up.sh", *WORDS["gcp"], status=3)
    assert not [words for words in sandbox.called() if words[0] == "ray"]


def kubernetes(folder: Path, *, there: bool, refuses: Answers = ()) -> Scratch:
    """Return a scratch checkout whose kubectl really builds manifests, and records all other calls."""
    sandbox = Scratch(folder)
    sandbox.copy("deploy/kubernetes")
    for path in sandbox.checkout.glob("deploy/kubernetes/overlays/*/*"):
        path.write_text(path.read_text().replace("example-", "my-").replace("123456789012", "210987654321"))
    missing = (("get secret", 0, "secret/tuner"),) if there else (("get crd", 1, ""),)
    sandbox.stand_in("kubectl-cluster", (*refuses, *missing))
    wrapper = sandbox.folder / "bin/kubectl"
    kubectl = sandbox.folder / "bin/kubectl-cluster"
    # Only calls that read from `-f -` get standard input.
    wrapper.write_text(
        f'#!/bin/sh\ncase "$*" in\nkustomize*|*"create configmap"*) exec {KUBECTL} "$@" ;;\n'
        f'*"-f -"*) exec {kubectl} "$@" ;;\n*) exec {kubectl} "$@" </dev/null ;;\nesac\n'
    )
    wrapper.chmod(0o755)
    return sandbox


IMAGE = "registry.internal:5000/team/tuner:1.2.3"


@pytest.mark.parametrize("overlay", ["trial", "aws", pytest.param("gcp", marks=pytest.mark.extended)])
def test_bare_kubernetes_cluster_gets_operator_secrets_and_manifests(overlay: str, tmp_path: Path) -> None:
    sandbox = kubernetes(tmp_path, there=False)
    url = {} if overlay == "trial" else {"DATABASE_URL": "postgresql://u:p@db.internal/tuner"}
    sandbox.run("deploy/kubernetes/up.sh", overlay, IMAGE, env=url)
    calls = sandbox.take_calls()
    did = [" ".join(words[1:]) for words, _ in calls]
    assert any(command.startswith("create -k github.com/ray-project/kuberay/") for command in did)
    secrets, tried, config_maps, manifests = (list(yaml.safe_load_all(stdin)) for _, stdin in calls if stdin)
    assert {document["kind"] for document in secrets} == {"Secret"}
    assert tried == manifests
    assert did.index("-n tuner delete job tuner-migrate bucket --ignore-not-found") < len(did) - 3
    text = yaml.safe_dump_all(manifests)
    assert "registry.example.com" not in text
    cluster, service = the("RayCluster", "tuner", manifests), the("Deployment", "tuner", manifests)
    images = {
        c["image"] for g in cluster["spec"]["workerGroupSpecs"] for c in g["template"]["spec"]["containers"]
    }
    assert images == {IMAGE}
    groups = {group["groupName"]: group for group in cluster["spec"]["workerGroupSpecs"]}
    (node_types,) = (config_map["data"]["objects.yaml"] for config_map in config_maps)
    found_types = read_node_types(node_types, "objects.yaml").types
    assert {node_type.name: dict(node_type.labels) for node_type in found_types} == {
        n: g["labels"] for n, g in groups.items()
    }
    assert {node_type.name: node_type.at_most for node_type in found_types} == {
        n: g["maxReplicas"] for n, g in groups.items()
    }
    assert service["spec"]["template"]["spec"]["containers"][0]["image"] == IMAGE
    assert "rollout status deployment/tuner" in did[-1]
    assert "raycluster/tuner" in did[-2]


def test_settings_with_the_example_bucket_are_refused(tmp_path: Path) -> None:
    sandbox = kubernetes(tmp_path, there=False)
    settings = sandbox.checkout / "deploy/kubernetes/overlays/aws/settings.env"
    settings.write_text(settings.read_text().replace("my-bucket", "example-bucket"))
    completed = sandbox.run("deploy/kubernetes/up.sh", "aws", IMAGE, status=2)
    assert "replace the example bucket" in completed.stderr
    assert sandbox.called() == []


@pytest.mark.parametrize(
    ("overlay", "says"), [("gcp", "DATABASE_URL=postgresql://"), ("azure", "unknown overlay azure")]
)
def test_missing_input_is_reported_before_anything_is_created(
    overlay: str, says: str, tmp_path: Path
) -> None:
    sandbox = kubernetes(tmp_path, there=False)
    completed = sandbox.run("deploy/kubernetes/up.sh", overlay, IMAGE, status=2)
    assert says in completed.stderr
    assert not [words for words in sandbox.called() if "get" not in words]


def test_upgrade_does_not_recreate_operator_or_secrets(tmp_path: Path) -> None:
    sandbox = kubernetes(tmp_path, there=True)
    sandbox.run("deploy/kubernetes/up.sh", "trial", IMAGE)
    calls = sandbox.take_calls()
    assert not [words for words, _ in calls if "create" in words]
    _, config_maps, manifests = (list(yaml.safe_load_all(stdin)) for _, stdin in calls if stdin)
    assert [document["kind"] for document in config_maps] == ["ConfigMap"]
    assert "Secret" not in {manifest["kind"] for manifest in manifests}


def test_changed_setting_replaces_the_services(tmp_path: Path) -> None:
    sandbox = kubernetes(tmp_path, there=True)
    settings = sandbox.checkout / "deploy/kubernetes/overlays/trial/settings.env"
    templates = []
    for text in ("TUNER_RATE_LIMIT=10\n", "TUNER_RATE_LIMIT=10\n", "TUNER_RATE_LIMIT=20\n"):
        settings.write_text(f"TUNER_STORAGE=s3://tuner/checkpoints\n{text}")
        sandbox.run("deploy/kubernetes/up.sh", "trial", IMAGE)
        manifests = list(yaml.safe_load_all([stdin for _, stdin in sandbox.take_calls() if stdin][-1]))
        templates.append(the("Deployment", "tuner", manifests)["spec"]["template"])
    assert templates[0] == templates[1]
    assert templates[1] != templates[2], "Kubernetes restarts no pod if only a config map changes"


def test_failed_build_changes_nothing_in_the_cluster(tmp_path: Path) -> None:
    """The node types that the service reads do not change either."""
    sandbox = kubernetes(tmp_path, there=True)
    (sandbox.checkout / "deploy/kubernetes/overlays/trial/kustomization.yaml").write_text(
        "resources: [gone.yaml]"
    )
    completed = sandbox.run("deploy/kubernetes/up.sh", "trial", IMAGE, status=1)
    assert "gone.yaml" in completed.stderr
    assert not [words for words, stdin in sandbox.take_calls() if stdin]


def test_refused_dry_run_changes_nothing_in_the_cluster(tmp_path: Path) -> None:
    """The cluster refuses, for example, fields that its KubeRay does not have yet."""
    sandbox = kubernetes(tmp_path, there=True, refuses=(("apply --dry-run=server", 1, ""),))
    sandbox.run("deploy/kubernetes/up.sh", "trial", IMAGE, status=1)
    (tried,) = [words for words, stdin in sandbox.take_calls() if stdin]
    assert tried == ["kubectl-cluster", "apply", "--dry-run=server", "-f", "-"]


def server(folder: Path, *, there: bool) -> dict[str, str]:
    """Return the variables of install.sh for a plain server. Its Python exists already, as after a first installation."""
    sandbox = Scratch(folder)
    sandbox.copy("deploy/systemd", "deploy/digits.yaml")
    sandbox.stand_in("id", () if there else (("tuner", 1, ""),))
    for name in ("useradd", "systemctl", "python3.11"):
        sandbox.stand_in(name)
    for name in ("python", "pip"):
        sandbox.stand_in(name, at=folder / "opt/bin")
    # The useradd stand-in creates no group, so the files get the group of this process.
    wrapper = folder / "bin/install"
    wrapper.write_text(f'#!/bin/bash\nexec /usr/bin/install "${{@/#tuner/{os.getgid()}}}"\n')
    wrapper.chmod(0o755)
    for name in ("units", "programs"):
        (folder / name).mkdir()
    names = {"PREFIX": "opt", "UNITS": "units", "SETTINGS": "etc", "PROGRAMS": "programs"}
    return {"PYTHON": "python3.11", **{name: str(folder / subfolder) for name, subfolder in names.items()}}


def test_install_creates_user_program_unit_and_settings(tmp_path: Path) -> None:
    env = server(tmp_path, there=False)
    sandbox = Scratch(tmp_path)
    sandbox.run("deploy/systemd/install.sh", env=env)
    calls = sandbox.called()
    (useradd,) = [words for words in calls if words[0] == "useradd"]
    assert useradd[-1] == "tuner"
    (pip,) = [words for words in calls if words[0] == "pip"]
    assert pip[-2:] == [str(sandbox.checkout / "constraints.txt"), f"{sandbox.checkout}[s3,gpu,postgresql]"]
    assert calls[-1] == ["systemctl", "daemon-reload"]
    unit = (tmp_path / "units/tuner.service").read_text()
    assert f"ExecStart={tmp_path}/opt/bin/tuner serve" in unit
    assert f"WorkingDirectory={tmp_path}/opt/trainables" in unit
    assert (tmp_path / "opt/trainables/digits.yaml").exists(), "what the README submits"
    assert (tmp_path / "etc/tuner.env").stat().st_mode & 0o777 == 0o600


def test_tuner_admin_runs_the_installed_program_as_the_service_runs(tmp_path: Path) -> None:
    """Otherwise `tuner-admin doctor` would check other settings than those of the service."""
    env = server(tmp_path, there=True)
    sandbox = Scratch(tmp_path)
    sandbox.run("deploy/systemd/install.sh", env=env)
    sandbox.called()
    sandbox.stand_in("systemd-run", (("refused", 3, ""),))
    for words, status in ((["bill", "a job", "--json"], 0), (["refused"], 3)):
        sandbox.run("../programs/tuner-admin", *words, status=status)
        ((_, *called),) = sandbox.called()
        number = called.index(f"{tmp_path}/opt/bin/tuner")
        assert called[number + 1 :] == words
        assert {"--pipe", "--wait"} <= set(called[:number])
        service = unit(tmp_path / "units/tuner.service")
        assert set(called[:number]) >= {
            f"--uid={service['User']}",
            f"--gid={service['Group']}",
            f"--setenv=TUNER_HOME=/var/lib/{service['StateDirectory']}",
            *(f"--property={key}={service[key]}" for key in ("EnvironmentFile", "WorkingDirectory", "UMask")),
            # On a new server only this creates the home, for example for a restore before the first start of the service.
            *(f"--property={key}={service[key]}" for key in ("StateDirectory", "StateDirectoryMode")),
        }


@pytest.mark.parametrize(
    ("name", "failing", "starting"),
    [
        ("sudo", "tuner-admin restore", "systemctl start"),
        ("docker", "tuner restore", "compose start"),
        ("kubectl", "wait job/tuner-restore", "scale --replicas 2"),
    ],
)
def test_documented_restore_starts_the_service_only_if_it_has_succeeded(
    name: str, failing: str, starting: str, tmp_path: Path
) -> None:
    """Otherwise the service would continue the jobs on the database that was not restored."""

    def is_in(words: str, texts: Iterable[str]) -> bool:
        return set(words.split()) <= set(texts)

    (block,) = [
        block
        for block in blocks(ROOT / "docs/backup.md")
        if block.text.startswith(f"{name} ") and is_in(starting, block.text.split())
    ]
    sandbox = Scratch(tmp_path)
    for status, condition in ((0, "Complete"), (1, "Failed")):
        sandbox.stand_in(name, ((failing, status, ""), ("get", 0, condition)))
        env = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
        subprocess.run(["bash", "-c", block.text], env=env, stdin=subprocess.DEVNULL, check=False)
        called = sandbox.called()
        assert any(is_in(failing, words) for words in called)
        assert any(is_in(starting, words) for words in called) == (status == 0)
        assert name != "kubectl" or any("logs" in words for words in called), "it lists the existing files"


def test_installation_has_no_files_of_another_version(tmp_path: Path) -> None:
    """setuptools keeps what it built before, such as migrations that the installed version lacks."""
    env = server(tmp_path, there=True)
    sandbox = Scratch(tmp_path)
    old = sandbox.checkout / "build/lib/tuner/old.py"
    old.parent.mkdir(parents=True)
    old.touch()
    listed = sandbox.pip_that_lists_modules(at=tmp_path / "opt/bin")
    sandbox.run("deploy/systemd/install.sh", env=env)
    assert listed.read_text() == ""


def test_user_of_the_service_can_read_what_root_installs(tmp_path: Path) -> None:
    """The umask of root may be 077."""
    env = server(tmp_path, there=True)
    sandbox = Scratch(tmp_path)
    (tmp_path / "opt/bin/pip").write_text(f"#!/bin/sh\ntouch {tmp_path}/opt/program\n")
    before = os.umask(0o077)
    try:
        sandbox.run("deploy/systemd/install.sh", env=env)
    finally:
        os.umask(before)
    for name in ("opt/program", "units/tuner.service"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o644, name


def test_second_installation_keeps_the_settings(tmp_path: Path) -> None:
    env = server(tmp_path, there=True)
    sandbox = Scratch(tmp_path)
    sandbox.run("deploy/systemd/install.sh", env=env)
    (tmp_path / "etc/tuner.env").write_text("TUNER_PORT=9000\n")
    sandbox.called()
    sandbox.run("deploy/systemd/install.sh", env=env)
    assert (tmp_path / "etc/tuner.env").read_text() == "TUNER_PORT=9000\n"
    assert not [words for words in sandbox.called() if words[0] == "useradd"]

"""Image tags and ports are the same in all files of deploy/ and in the code."""

import re
import tomllib
from collections.abc import Iterator

import yaml

from tests.deploy.files import DEPLOY, ROOT, texts
from tests.deploy.manifests import FOLDER, OVERLAYS, Manifest, built, pods
from tuner.settings import Settings

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
PORT = Settings.from_env({}).port
# Default ports of Ray's head, as in KubeRay's service: GCS, and dashboard with jobs.
HEAD = {6379, 8265}
COMPOSE = {
    "tuner": {PORT},
    "ray-head": HEAD,
    "database": {5432},
    "storage": {9000},
    "prometheus": {9090},
    "grafana": {3000},
}


def named(names: str, text: str) -> Iterator[tuple[str, int]]:
    """Yield each HOST:PORT of these hosts, without image tags."""
    for host, port in re.findall(rf"(?<![\w.-])({names}):(\d+)(?![\d.])", text):
        yield host, int(port)


def test_all_tuner_image_tags_equal_the_project_version() -> None:
    image_tags = {
        (path.name, tag)
        for path, text in texts()
        for tag in re.findall(r"tuner(?:==|:|, newTag: )v?(\d+\.\d+\.\d+)", text)
    }
    assert {name for name, _ in image_tags} >= {"compose.yaml", "Dockerfile", "README.md", "up.sh"}
    assert {tag for _, tag in image_tags} == {VERSION}
    for overlay in OVERLAYS:
        (image,) = yaml.safe_load((FOLDER / "overlays" / overlay / "kustomization.yaml").read_text())[
            "images"
        ]
        assert image["newTag"].partition("-")[0] == VERSION


def test_installed_kuberay_version_is_documented_and_new_enough() -> None:
    """The installed version is one that the manifests were checked against, and new enough for them."""
    (installed,) = re.findall(r"kuberay/\S+\?ref=v(\S+?)\"", (FOLDER / "up.sh").read_text())
    tested = (ROOT / "docs/testing.md").read_text()
    (held,) = re.findall(r"definitions of KubeRay ([\d., and]+\d)", tested)
    assert installed in re.findall(r"\d+\.\d+\.\d+", held)
    for text in [(FOLDER / name).read_text() for name in ("README.md", "base/ray-cluster.yaml")]:
        (needed,) = re.findall(r"(?:KubeRay\S* \(?)(\d+\.\d+)(?:\.0)? or (?:newer|later)", text)
        assert tuple(map(int, needed.split("."))) <= tuple(map(int, installed.split(".")))[:2]


def others(images: Iterator[str]) -> dict[str, str]:
    pairs = dict(image.rsplit(":", 1) for image in images)
    return {name: tag for name, tag in pairs.items() if not name.endswith("tuner")}


def test_compose_and_kubernetes_use_the_same_third_party_images() -> None:
    text = (DEPLOY / "compose/compose.yaml").read_text()
    compose = others(iter(re.findall(r"^    image: ([^$\s]+)$", text, re.MULTILINE)))
    trial = others(c["image"] for _, pod in pods(built("overlays/trial")) for c in pod["containers"])
    assert set(trial) == {"postgres", "minio/minio"}
    assert trial.items() <= compose.items()


def test_every_container_address_uses_a_port_that_listens() -> None:
    files = (
        "compose/compose.yaml",
        "compose/secrets.sh",
        "prometheus/compose.yml",
        "grafana/provisioning/datasources/prometheus.yml",
    )
    text = "\n".join((DEPLOY / name).read_text() for name in files)
    addresses = list(named("|".join(COMPOSE), text))
    assert {host for host, _ in addresses} >= {"ray-head", "database", "storage", "prometheus"}
    for host, port in addresses:
        assert port in COMPOSE[host], host
    command = yaml.safe_load((DEPLOY / files[0]).read_text())["services"]["ray-head"]["command"]
    assert {
        int(argument.split("=")[1]) for argument in command if re.match(r"--(dashboard-)?port=", argument)
    } == HEAD
    for name in ("compose.yml", "prometheus.yml"):
        assert re.search(rf"\b{PORT}\b", (DEPLOY / "prometheus" / name).read_text()), name


def listening(among: list[Manifest]) -> dict[str, set[int]]:
    """Return the ports of each Service, including the service that KubeRay creates for the head."""
    services = {
        manifest["metadata"]["name"]: {port["port"] for port in manifest["spec"]["ports"]}
        for manifest in among
        if manifest["kind"] == "Service"
    }
    heads = {
        f"{manifest['metadata']['name']}-head-svc": HEAD
        for manifest in among
        if manifest["kind"] == "RayCluster"
    }
    return services | heads


def test_every_pod_address_uses_a_port_of_its_service() -> None:
    among = built("overlays/trial")
    ports = listening(among)
    text = yaml.safe_dump_all(among) + (FOLDER / "secrets.sh").read_text()
    addresses = list(named("|".join(ports), text))
    assert {host for host, _ in addresses} >= {"tuner-head-svc", "database", "storage"}
    for host, port in addresses:
        assert port in ports[host], host


def test_service_targets_a_port_of_its_pods() -> None:
    among = built("overlays/trial")
    open_by_pod = {
        name: {p["name"]: p["containerPort"] for c in pod["containers"] for p in c.get("ports", [])}
        for name, pod in pods(among)
    }
    assert open_by_pod["tuner"] == {"http": PORT}
    for manifest in among:
        if manifest["kind"] == "Service":
            (port,) = manifest["spec"]["ports"]
            target = port.get("targetPort", port["port"])
            pod = open_by_pod[manifest["metadata"]["name"]]
            assert target in (*pod, *pod.values())

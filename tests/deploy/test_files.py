"""Rules for every file of deploy/: existing settings, pinned versions, no secrets, checked scripts, and the image."""

import re
import subprocess
import sys
from pathlib import Path

import yaml

from tests.deploy.files import CONSTRAINTS, DEPLOY, ROOT, scripts, texts
from tools.checks.blocks import blocks
from tuner.schemas.job import JobRequest
from tuner.service.trainables import is_allowed
from tuner.settings import Settings

BIN = Path(sys.executable).parent
# Variables that only the Compose file uses.
OF_COMPOSE = {"TUNER_IMAGE", "TUNER_VARIANT", "TUNER_EXTRAS", "TUNER_PUBLISHED_PORT"}


def test_every_setting_named_in_a_file_exists() -> None:
    known = set(re.findall(r'"(TUNER_[A-Z_]+)"', (ROOT / "tuner/settings.py").read_text())) | OF_COMPOSE
    for path, text in texts():
        assert set(re.findall(r"TUNER_[A-Z_]+[A-Z]", text)) <= known, path


def test_no_image_uses_the_latest_tag() -> None:
    for path, text in texts():
        assert not re.search(r"^[^#]*image:.*:latest|^FROM .*:latest", text, re.MULTILINE), path


def test_every_ray_version_equals_the_pinned_version() -> None:
    for path, text in texts():
        named = re.findall(r"(?:rayVersion:\s*\"?|ray==|rayproject/ray:)(\d+\.\d+\.\d+)", text)
        assert set(named) <= {CONSTRAINTS["ray"]}, path


def test_files_contain_no_secret_values() -> None:
    """Secrets come from a variable, a file, or an object that a command creates."""
    secret = re.compile(r"^[\s-]*\w*(?:PASSWORD|TOKEN|SECRET\w*KEY|API_KEY)\"?\s*[:=]\s*(\S+)", re.MULTILINE)
    for path, text in texts():
        if path.suffix != ".md":
            for value in secret.findall(text):
                assert value.strip("\"'").startswith("$") or "$(" in value, (path, value)


def test_services_are_restarted_wherever_a_secret_is_changed() -> None:
    """Running services keep the values with which they started."""
    places = [
        (path, text[edit.end() :])
        for path, text in texts()
        for edit in re.finditer("edit secret tuner", text)
    ]
    assert {path.name for path, _ in places} == {"README.md", "secrets.sh"}
    for path, rest in places:
        next_command = rest[rest.index("kubectl") :]
        assert next_command.startswith("kubectl -n tuner rollout restart deployment/tuner"), path


def test_scripts_pass_shellcheck_and_are_executable() -> None:
    paths = scripts()
    completed = subprocess.run([BIN / "shellcheck", *paths], capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout
    assert [path for path in paths if not path.stat().st_mode & 0o111] == []


def test_every_ray_head_runs_no_trials() -> None:
    """Its machine has the URL of the database. The service of systemd starts its own head, on which trials run."""
    heads = dict[str, str]()
    for path, text in texts():
        start = re.search(r"ray start --head|- --head$|headGroupSpec:$", text, re.MULTILINE)
        if start and path.suffix != ".md":
            heads[path.name] = text[start.end() : start.end() + 400]
    assert heads.keys() == {"compose.yaml", "ray-cluster.yaml", "ray-node.sh", "tuner.sbatch"}
    for name, words in heads.items():
        assert re.search(r'--num-cpus=0\s|num-cpus: "0"\s', words), name


def test_example_job_is_valid() -> None:
    JobRequest.model_validate(yaml.safe_load((DEPLOY / "digits.yaml").read_text()))


class TestTheImage:
    text = (DEPLOY / "Dockerfile").read_text()

    def test_hadolint_accepts_the_dockerfile(self) -> None:
        completed = subprocess.run(
            [BIN / "hadolint", DEPLOY / "Dockerfile"], capture_output=True, text=True, check=False
        )
        assert completed.returncode == 0, completed.stdout

    def test_hadolint_reports_an_untagged_base_image(self, tmp_path: Path) -> None:
        wrong = tmp_path / "Dockerfile"
        wrong.write_text(self.text.replace("python:3.11-slim-bookworm AS runtime", "python AS runtime"))
        completed = subprocess.run([BIN / "hadolint", wrong], capture_output=True, text=True, check=False)
        assert "DL3006" in completed.stdout

    def test_image_has_both_variants_and_installs_pinned_packages(self) -> None:
        assert {"torch-cpu", "torch-cuda"} <= set(re.findall(r"AS (\S+)", self.text))
        for line in re.findall(r"pip install.*", self.text):
            assert "-c constraints.txt" in line or "grep '^torch==' constraints.txt" in line
        extras = re.search(r"ARG EXTRAS=(\S+)", self.text)
        assert extras is not None
        known = (ROOT / "pyproject.toml").read_text()
        for name in extras[1].split(","):
            assert re.search(rf"^{name} = \[", known, re.MULTILINE)

    def test_every_package_of_an_extra_is_pinned(self) -> None:
        match = re.search(
            r"\[project.optional-dependencies\]\n(.*?)\n\[", (ROOT / "pyproject.toml").read_text(), re.DOTALL
        )
        assert match is not None
        pinned = {name.lower().replace("_", "-") for name in CONSTRAINTS}
        for name in re.findall(r'"([A-Za-z0-9_.-]+)(?:\[|[><=]|")', match[1]):
            assert name.lower().replace("_", "-") in pinned, name

    def test_image_runs_as_non_root_and_listens_on_its_exposed_port(self) -> None:
        assert "\nUSER 1000:1000\n" in self.text
        env = dict(re.findall(r"(TUNER_\w+)=(\S+)", self.text))
        settings = Settings.from_env(env)
        assert (settings.host, settings.port) == ("0.0.0.0", Settings.from_env({}).port)
        assert f"\nEXPOSE {settings.port}\n" in self.text
        assert "http://127.0.0.1:$TUNER_PORT/healthz" in self.text
        assert self.text.rstrip().endswith('CMD ["tuner", "serve"]')

    def test_documented_image_has_own_code_where_the_service_looks_for_it(self, tmp_path: Path) -> None:
        (block,) = [block for block in blocks(DEPLOY / "README.md") if block.language == "dockerfile"]
        (tmp_path / "Dockerfile").write_text(block.text)
        completed = subprocess.run(
            [BIN / "hadolint", tmp_path / "Dockerfile"], capture_output=True, text=True, check=False
        )
        assert completed.returncode == 0, completed.stdout
        base, copied, env = block.text.splitlines()
        assert (
            f"image: ${{TUNER_IMAGE:-{base.removeprefix('FROM ')}}}"
            in (DEPLOY / "compose/compose.yaml").read_text()
        )
        workdirs = re.findall(r"^WORKDIR (\S+)", self.text, re.MULTILINE)
        assert copied.split()[-1] == f"{workdirs[-1]}/my_package"
        name, _, modules = env.removeprefix("ENV ").partition("=")
        assert is_allowed("my_package.train:train", Settings.from_env({name: modules}).allowed_modules)

    def test_dockerignore_admits_exactly_the_copied_files(self) -> None:
        let_in = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
        copied = [
            name
            for line in re.findall(r"^COPY (?!--from)(.*)$", self.text, re.MULTILINE)
            for name in line.split()[:-1]
            if not name.startswith("--")
        ]
        assert sorted(let_in) == sorted(copied)
        assert all((ROOT / name).exists() for name in let_in)

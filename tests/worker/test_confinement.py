"""Test the confinement of user code with real children: what it sees, how much it may use, and what it leaves
behind.
"""

import mmap
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worker.driving import Driver
from tuner.worker import fork_server, process_tree, scratch
from tuner.worker.limits import SECRETS, UserCodeLimits
from tuner.worker.server_handle import ForkServer
from tuner.worker.supervisor import Supervisor

MODULE = "tests.worker.confined"
MIB = 1 << 20
SECRET = "a-secret-of-somebody"
HELD_BACK = [
    *["RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"],
    *[
        "TUNER_DATABASE_URL",
        "TUNER_DATABASE_URL_FILE",
        "TUNER_API_KEY",
        "TUNER_HOME",
        "TUNER_STORAGE",
        "TUNER_MLFLOW_URI",
    ],
    *["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS"],
    *["AZURE_STORAGE_KEY", "AZURE_STORAGE_CONNECTION_STRING"],
    *["HF_TOKEN", "NVIDIA_API_KEY", "WANDB_API_KEY", "TF_API_TOKEN", "SOMETHING_NEW"],
    *["PGPASSWORD", "SSH_AUTH_SOCK", "KUBECONFIG", "KUBERNETES_SERVICE_HOST"],
]
PASSES = [
    *["PATH", "HOME", "LANG", "LC_ALL", "TZ", "no_proxy", "SSL_CERT_FILE", "TUNER_USER_TOKEN"],
    *[
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
        "NCCL_DEBUG",
        "OMP_NUM_THREADS",
        "HF_HOME",
        "TORCH_HOME",
    ],
]


@pytest.fixture(scope="module", autouse=True)
def strict() -> Iterator[None]:
    """Set environment variables with secrets, and limits on what a child may use."""
    with pytest.MonkeyPatch.context() as patch:
        for name in HELD_BACK:
            patch.setenv(name, SECRET)
        for name in ("TORCH_HOME", "TUNER_USER_TOKEN", "EXTRA_NAMED", "EXTRAS_OF_ALL_KINDS"):
            patch.setenv(name, "may-pass")
        patch.setenv("HTTPS_PROXY", f"http://user:{SECRET}@proxy:3128")
        patch.setenv("HTTP_PROXY", "http://proxy:3128")
        patch.setenv("TUNER_MAX_OPEN_FILES", "200")
        patch.setenv("TUNER_MAX_PROCESSES", "40")
        patch.setenv("TUNER_PASS_ENV", "EXTRA_NAMED, EXTRAS_*")
        yield


def metrics_of(driver: Any) -> dict[str, Any]:
    driver.begin(target_step=9)
    driver.until_state("ended")
    return dict(driver.reports[-1]["metrics"])


def test_child_environment_has_training_variables_but_no_secrets(drive: Any) -> None:
    seen = metrics_of(drive("looks_around", MODULE))
    for where in ("environ", "mine", "parents"):
        assert SECRET not in seen[where]
        assert "http://proxy:3128" in seen[where]
        assert "EXTRA_NAMED=may-pass" in seen[where]
        assert "EXTRAS_OF_ALL_KINDS=may-pass" in seen[where]
    assert "GLIBC_TUNABLES" not in seen["environ"], "it is for the fork server"
    assert set(seen["descriptors"].split(",")) <= {
        "0",
        "1",
        "2",
        "listing",
        "socket",
        "/proc/self/fd",
        "/proc/",
    }
    assert seen["core"] == "(0, 0)"
    assert seen["files"] == "200"
    assert seen["privileges"] == "1"


@given(
    names=st.dictionaries(
        st.one_of(
            st.sampled_from(HELD_BACK),
            st.sampled_from(PASSES),
            st.from_regex(r"[A-Z_]{1,20}", fullmatch=True),
        ),
        st.just(SECRET),
    )
)
def test_only_listed_or_named_variables_pass_to_the_child(names: dict[str, str]) -> None:
    seen = UserCodeLimits().environment(names, [])
    assert not set(HELD_BACK) & seen.keys()
    assert set(PASSES) & names.keys() <= seen.keys()
    assert not [
        n
        for n in seen
        if n in names and n.startswith(("TUNER_", "RAY_")) and n[:11] != "TUNER_USER_" and seen[n] == SECRET
    ]
    assert not [
        n
        for n in seen
        if any(word in n for word in SECRETS) and n not in PASSES and not n.startswith("TUNER_USER_")
    ]


def test_order_of_sets_is_the_same_in_all_workers() -> None:
    assert UserCodeLimits().environment({}, [])["PYTHONHASHSEED"] == "0"
    assert UserCodeLimits().environment({"PYTHONHASHSEED": "7"}, [])["PYTHONHASHSEED"] == "7"


def test_named_patterns_never_pass_the_services_own_variables() -> None:
    given_all = UserCodeLimits(
        passed=("TUNER_*", "RAY_AUTH_TOKEN", "T*", "R*", "WANDB_API_KEY", "HTTPS_PROXY")
    )
    environ = dict.fromkeys((*HELD_BACK, "HTTPS_PROXY"), f"{SECRET}@")
    passed = {name for name, value in given_all.environment(environ, []).items() if SECRET in value}
    assert passed == {"WANDB_API_KEY", "HTTPS_PROXY", "TF_API_TOKEN"}


def test_too_many_open_files_error_names_limit_and_setting(drive: Any) -> None:
    driver = drive("opens_files", MODULE)
    driver.begin()
    error = driver.until_state("failed")["error"]
    assert error["type"] == "OSError"
    assert "TUNER_MAX_OPEN_FILES" in error["message"]
    assert "200" in error["message"]


@pytest.mark.parametrize("case", ["multiplies", "threads"])
def test_child_with_too_many_processes_is_killed_with_all_of_them(drive: Any, case: str) -> None:
    driver, mark = drive(case, MODULE), str(uuid4())
    driver.begin(config={"mark": mark})
    error = driver.until_state("failed")["error"]
    assert (error["kind"], error["type"]) == ("processes", "ProcessLimit")
    assert "more than 40 processes and threads, the limit that TUNER_MAX_PROCESSES sets" in error["message"]
    assert not [p for p in psutil.process_iter(["cmdline"]) if mark in " ".join(p.info["cmdline"] or [])]


@pytest.mark.parametrize("case", ["eats", "eats_as_a_daemon"])
def test_child_above_its_memory_limit_is_killed_with_its_daemons(drive: Any, case: str) -> None:
    driver = drive(case, MODULE)
    driver.begin(memory_limit_bytes=600 * MIB)
    error = driver.until_state("failed")["error"]
    assert error["kind"] == "memory"
    assert "more than its share of 0.6 GiB" in error["message"]
    assert not psutil.Process(driver.supervisor.server.pid).children(recursive=True)


def test_memory_that_forked_processes_share_counts_once(drive: Any) -> None:
    driver = drive("shares_its_data", MODULE)
    driver.begin(memory_limit_bytes=700 * MIB)
    assert driver.until_state("ended")["error"] is None


def test_process_that_hides_its_memory_map_is_counted_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == "smaps_rollup":
            raise PermissionError(str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    _, resident, *_ = map(int, read(Path("/proc/self/statm")).split())
    assert process_tree.proportional_bytes([os.getpid()]) > resident * os.sysconf("SC_PAGE_SIZE") // 2
    assert process_tree.proportional_bytes([2**22 + 5]) == 0


@pytest.mark.parametrize("how", ["mode", "link", "file"])
def test_attempt_may_do_anything_to_its_working_directory(drive: Any, tmp_path: Path, how: str) -> None:
    driver, target = drive("locks_its_directory", MODULE), tmp_path / "target"
    (target / "inner").mkdir(parents=True)
    (target / "inner").chmod(0o500)
    for _ in range(2):
        driver.begin(config={"how": how, "target": str(target)})
        assert driver.until_state("ended")["error"] is None
    assert (target / "inner").stat().st_mode & 0o777 == 0o500


def test_worker_ends_although_a_process_that_left_its_session_prints(tmp_path: Path) -> None:
    entry, marker = f"{MODULE}:prints_after_its_end", tmp_path / "marker"
    driver = Driver(tmp_path / "storage", entry, Supervisor(entry))
    driver.begin(config={"marker": str(marker)})
    driver.until(lambda _: marker.exists())
    driver.supervisor.close()
    assert not driver.supervisor.server.alive


CLOSES = """
import os, signal, sys
from pathlib import Path
from tests.worker.driving import Driver
from tuner.worker.supervisor import Supervisor

entry, marker = "tests.worker.confined:leaves_a_daemon", Path("marker")
driver = Driver("storage", entry, Supervisor(entry, owns_process=True))
driver.begin(config={"marker": str(marker.absolute())})
driver.until(lambda _: marker.exists() and marker.read_text())
os.kill(driver.supervisor.server.pid, signal.SIGKILL)
driver.supervisor.close()
"""


def test_closed_worker_leaves_no_orphan_of_a_killed_fork_server(tmp_path: Path) -> None:
    """The worker is a process of its own, because a worker that owns its process kills all children of it."""
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", CLOSES], cwd=tmp_path, env=environment, check=True, timeout=120)
    assert not psutil.pid_exists(int((tmp_path / "marker").read_text()))


LEAVES_A_DAEMON = """
import os, signal, subprocess, sys
daemon = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], start_new_session=True)
with open(os.environ["TUNER_USER_PIDS"], "a") as file:
    file.write(f"{daemon.pid}\\n")
os.kill(os.getpid(), signal.SIGKILL)
"""
RUNS = """
import sys, time
from pathlib import Path
from tuner.driver import paid_actors
from tuner.checkpoints.checkpoints import CheckpointId
from tuner.worker import export
from tuner.worker.self_test import SelfTestOrder, self_test

def fetch(*_):
    while not Path("pids").exists():
        time.sleep(0.01)
    raise export.CheckpointMissing("there is no checkpoint")

export.CheckpointStore.fetch = fetch
paid_actors.hide_unrequested_gpus = lambda: None
shared = {"entry": "leaves_a_daemon:train", "limit_s": 60, "resources": {"CPU": 1}}
if sys.argv[1] == "self-test":
    paid_actors.WorkProcess(self_test).run(SelfTestOrder(**shared, configs=[{}], max_step=9))
else:
    order = export.ExportOrder(
        **shared,
        **{name: name for name in ("project", "job", "export", "trial", "storage")},
        checkpoint=CheckpointId(1, 1),
        package=None,
        config={},
        formats=["onnx"],
        mode="max",
        max_drop=None,
        threads=1,
    )
    paid_actors.WorkProcess(export.export).run(order)
"""


@pytest.mark.parametrize("work", ["self-test", "export"])
def test_self_test_or_export_leaves_no_orphan_of_a_fork_server_that_died(tmp_path: Path, work: str) -> None:
    """User code starts a process and kills the fork server, while the server imports it."""
    (tmp_path / "leaves_a_daemon.py").write_text(LEAVES_A_DAEMON)
    paths, pids = os.pathsep.join([str(tmp_path), os.getcwd()]), tmp_path / "pids"
    environment = {**os.environ, "PYTHONPATH": paths, "TMPDIR": str(tmp_path), "TUNER_USER_PIDS": str(pids)}
    command = [sys.executable, "-c", RUNS, work]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=120)
    assert not [pid for pid in pids.read_text().split() if psutil.pid_exists(int(pid))]


@pytest.mark.parametrize("killed", [True, False])
def test_temporary_files_of_an_attempt_are_removed(drive: Any, tmp_path: Path, killed: bool) -> None:
    driver, marker = drive("leaves_files", MODULE), tmp_path / "marker"
    driver.begin(config={"marker": str(marker), "killed": killed})
    if killed:
        driver.until(lambda _: marker.exists() and marker.read_text())
        assert Path(marker.read_text()).exists()
        driver.order("stop")
    driver.until_state("stopped" if killed else "ended")
    folder = Path(marker.read_text())
    assert driver.supervisor._scratch.path in folder.parents
    assert not folder.exists()


def test_last_result_does_not_wait_until_the_directory_of_the_attempt_is_removed(
    drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory with millions of files takes minutes. The driver would kill the worker, and repeat the attempt."""
    removed, in_time, wipe = Event(), list[bool](), scratch.wipe

    def remove_late(folder: Path) -> None:
        if folder.name.startswith("ended"):
            in_time.append(removed.wait(240))
        wipe(folder)

    monkeypatch.setattr(scratch, "wipe", remove_late)
    driver = drive("looks_around", MODULE)
    driver.begin()
    driver.until_state("ended")
    driver.begin()
    driver.until_state("ended")
    removed.set()
    driver.supervisor._directories.settle(60)
    assert in_time == [True, True]
    assert not [
        path
        for path in driver.supervisor._scratch.path.iterdir()
        if re.fullmatch(r"a\d+|ended-\d+", path.name)
    ]


def test_memory_limit_applies_while_the_module_is_imported(
    drive: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    driver = drive("train", "tests.worker.greedy_import", fresh=True)
    driver.begin(memory_limit_bytes=700 * MIB)
    error = driver.until_state("failed")["error"]
    assert error["kind"] == "memory"
    assert "printed as it is imported" not in "".join(capfd.readouterr())


def test_folders_without_permissions_are_removed() -> None:
    """Run the removal as a user without root's rights."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        place = Path(name)
        place.chmod(0o777)
        outside, left = place / "outside", place / "left"
        pid = os.fork()
        if pid == 0:
            try:
                if os.getuid() == 0:
                    os.setuid(65534)
                outside.mkdir(mode=0o500)
                (left / "inner").mkdir(parents=True)
                (left / "inner/file").write_text("x")
                (left / "link").symlink_to(outside)
                (left / "inner").chmod(0)
                left.chmod(0o500)
                scratch.wipe(left)
                os._exit(int(left.exists()))
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert outside.stat().st_mode & 0o777 == 0o500


@pytest.mark.parametrize("are_gone", [True, False])
def test_fork_server_answers_whether_all_processes_of_an_attempt_are_gone(
    monkeypatch: pytest.MonkeyPatch, are_gone: bool
) -> None:
    """A process that waits for a device or a network file system does not end, although it was killed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    served = fork_server.Server(theirs, "", mmap.mmap(-1, 1))
    monkeypatch.setattr(fork_server, "kill_own_descendants", lambda: are_gone)
    monkeypatch.setattr(served, "_reap", lambda: None)
    idle = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(idle) as process, theirs:
        server = ForkServer(process, ours, lambda *_: None, {})
        theirs.send(b'{"ready": true}')
        server.await_ready(lambda: True)
        serving = Thread(target=served._serve)
        serving.start()
        assert server.clean() is are_gone
        serving.join()
        process.kill()


def test_worker_notes_that_processes_of_an_attempt_could_not_be_killed(
    drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean = ForkServer.clean
    monkeypatch.setattr(ForkServer, "clean", lambda server: clean(server) and False)
    driver = drive("looks_around", MODULE, fresh=True)
    assert driver.supervisor.is_clean
    metrics_of(driver)
    assert not driver.supervisor.is_clean


@pytest.mark.parametrize(("outcomes", "are_gone"), [([False, True], True), ([False, False], False)])
def test_exit_status_is_collected_while_descendants_are_killed(
    monkeypatch: pytest.MonkeyPatch, outcomes: list[bool], are_gone: bool
) -> None:
    """Otherwise the zombies of processes that fork until they are killed fill the process table."""
    left, collected, clock = list(outcomes), list[int](), iter((0.0, 1.0, process_tree.KILL_S + 1))
    monkeypatch.setattr(process_tree, "kill_descendants", lambda *_, **__: left.pop(0))
    monkeypatch.setattr(process_tree, "collect_ended", lambda *, without: collected.append(without))
    monkeypatch.setattr(process_tree, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert process_tree.kill_own_descendants(without=7) is are_gone
    assert collected == [7, 7]


LEAVES_SHARED_MEMORY = """
import os, subprocess, sys
from tuner.worker import endings, process_tree
process_tree.become_subreaper()
code = "import time; from multiprocessing.shared_memory import SharedMemory; memory = SharedMemory(create=True, size=1)"
code += "; print(memory.name, flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE, text=True)
memory = "/dev/shm/" + child.stdout.readline().strip()
existed = os.path.exists(memory)
endings.kill_group(child.pid)
are_gone = process_tree.kill_descendants(os.getpid(), within_s=600, trackers_s=600)
print(existed, are_gone, os.path.exists(memory))
if os.path.exists(memory):
    os.unlink(memory)
"""


def test_shared_memory_of_a_killed_process_is_removed() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LEAVES_SHARED_MEMORY], capture_output=True, text=True, check=True
    )
    assert ended.stdout.split() == ["True", "True", "False"]


def test_process_that_pretends_to_be_a_resource_tracker_is_killed() -> None:
    code = "import signal; [signal.signal(number, signal.SIG_IGN) for number in (2, 15)]; print(flush=True); signal.pause()"
    starts = f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {code!r}])"
    with subprocess.Popen([sys.executable, "-S", "-c", starts], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        [pretender] = process_tree.descendants(process.pid)
        assert process_tree.is_tracker(pretender)
        assert process_tree.kill_descendants(process.pid, within_s=600, trackers_s=0.05)


def test_limits_apply_to_processes_started_by_a_process() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "input(); import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        UserCodeLimits(open_files=123).hold(process.pid)
        output, _ = process.communicate("\n")
    assert output.strip() == "(123, 123)"
    UserCodeLimits().hold(process.pid)

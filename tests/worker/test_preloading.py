"""Test what a fork server imports before the first attempt: what the code needs, and no more."""

import atexit
import json
import os
import subprocess
import sys
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.waiting import is_dead, until
from tests.data_server import data_server
from tests.worker.driving import Driver, parsed
from tuner.domain.usage import Usage
from tuner.training.channel import BeginMessage, begin_message, reply_message
from tuner.worker import child, probe
from tuner.worker.supervisor import Supervisor


@pytest.mark.parametrize(
    ("source", "torch"),
    [
        ("", False),
        ("def later():\n    from tuner.training import dataset, prepare\n", False),
        ("def later():\n    from tuner.training import prepare, SpotSafe\n", True),
    ],
    ids=["without", "with names that do not need it", "with"],
)
def test_torch_is_imported_once_for_all_attempts_if_the_code_may_need_it(
    source: str, torch: bool, drive: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The half of PyTorch that only optimizers need is imported in neither case."""
    module = f"imports_little_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(
        "import sys\ndef train(config):\n"
        "    names = {name: 'tor' + 'ch' + name in sys.modules for name in ('', '._dynamo.config')}\n"
        "    return {'acc': 1, 'imported': names[''], 'dynamo': names['._dynamo.config']}\n" + source
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    driver = drive("train", module, fresh=True)
    driver.run(seed=0)
    assert driver.reports[0]["metrics"] == {"acc": 1, "imported": torch, "dynamo": False}


COMPUTES_EARLY = {
    "PyTorch": """
import torch
X = torch.ones(1 << 20)
X = (X - X.mean()).add_(1)

def total():
    return float((X * 2).sum())
""",
    # without PyTorch
    "XGBoost": """
import numpy as np
import xgboost
X = xgboost.DMatrix(np.ones((20000, 20)), label=np.ones(20000))

def total():
    xgboost.train({}, X, num_boost_round=2)
    return float(X.num_row())
""",
}


@pytest.mark.parametrize("library", COMPUTES_EARLY)
def test_module_that_computes_with_threads_at_its_import_does_not_hang_its_attempts(
    library: str, drive: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    module = f"computes_early_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(
        f"{COMPUTES_EARLY[library]}\nimport os\nIMPORTED_BY = os.getpid()\n"
        "def train(config):\n    return {'acc': total(), 'in_the_child': IMPORTED_BY == os.getpid()}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    driver = drive("train", module, fresh=True)
    driver.run()
    expected = {"PyTorch": 2.0 * (1 << 20), "XGBoost": 20000.0}
    assert driver.reports[0]["metrics"] == {"acc": expected[library], "in_the_child": True}


@pytest.mark.parametrize(
    ("own", "code", "visible"),
    [
        ("2,3", "os.environ['CUDA_VISIBLE_DEVICES'] = '0'", "2,3"),
        ("2,3", "del os.environ['CUDA_VISIBLE_DEVICES']", "2,3"),
        ("", "os.environ['CUDA_VISIBLE_DEVICES'] = '0'", ""),
        ("2,3", "os.environ['CUDA_VISIBLE_DEVICES'] = '3'", "3"),
        ("2,3", "os.environ['CUDA_VISIBLE_DEVICES'] = ''", ""),
    ],
)
def test_module_cannot_choose_gpus_of_other_trials_at_its_import(
    own: str,
    code: str,
    visible: str,
    drive: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", own)
    module = f"chooses_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(
        f"import os\n{code}\ndef train(config):\n    return {{'acc': 1, 'visible': os.environ['CUDA_VISIBLE_DEVICES']}}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    driver = drive("train", module, fresh=True)
    driver.run()
    assert driver.reports[0]["metrics"]["visible"] == visible
    assert _run_child(f"{module}:train", tmp_path) == 0
    assert ("the GPUs of this trial" in capfd.readouterr().out) is (visible == own)


STARTS_A_POOL = """
import ctypes
libc, thread = ctypes.CDLL(None), ctypes.c_void_p()
libc.pthread_create(ctypes.byref(thread), None, libc.pause, None)
libc.pthread_setname_np(thread, NAME)
"""


@pytest.mark.parametrize(("name", "is_lost"), [("pool-0", True), ("jemalloc_bg_thd", False)])
def test_module_whose_library_starts_threads_at_its_import_is_imported_by_each_attempt(
    name: str, is_lost: bool, drive: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pools of Polars, JAX and CUDA do not exist in a fork, which would wait for them."""
    module = f"starts_{name.replace('-', '_')}_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(
        f"import os\nNAME = {name.encode()!r}\n{STARTS_A_POOL}\nIMPORTED_BY = os.getpid()\n"
        "def train(config):\n    return {'acc': 1, 'in_the_child': IMPORTED_BY == os.getpid()}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    driver = drive("train", module, fresh=True)
    driver.run()
    assert driver.reports[0]["metrics"]["in_the_child"] is is_lost


@pytest.mark.parametrize(
    "also",
    ["", "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"],
    ids=["by the server", "by each attempt"],
)
def test_code_at_the_top_level_draws_the_same_numbers_on_all_workers(
    also: str, drive: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"splits_early_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(
        "import os\nimport random\nimport numpy as np\n"
        f"SPLIT = [*np.random.permutation(1000)[:3], random.random()]\nIMPORTED_BY = os.getpid()\n{also}\n"
        "def train(config):\n"
        "    return {'acc': 1, 'split': str(SPLIT), 'by_attempt': IMPORTED_BY == os.getpid()}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    metrics = []
    for _ in range(2):
        driver = drive("train", module, fresh=True)
        driver.run(seed=5)
        metrics += [report["metrics"] for report in driver.reports]
    assert metrics[0] == metrics[1]
    assert metrics[0]["by_attempt"] == bool(also)


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("train({'lr': 0.1})", "a training"),
        ("RUN = SpotSafe()", "a training"),
        ("from tuner.training.framework_run import FrameworkRun; RUN = FrameworkRun()", "a callback"),
        ("TEACHER = teacher()", "teacher()"),
    ],
)
def test_training_at_the_top_level_is_no_trial_and_fails_with_advice(
    code: str, name: str, drive: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"trains_early_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(
        "from tuner.training import SpotSafe, teacher\n"
        "def train(config):\n    with SpotSafe() as run:\n        for _ in run.steps(3):\n            run.report(acc=config['lr'])\n"
        f"{code}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    driver = drive("train", module, fresh=True)
    driver.begin(target_step=3, config={"lr": 0.5})
    error = driver.until_state("failed")["error"]
    assert (error["kind"], error["type"]) == ("import", "UsedAtImport")
    assert name in error["message"]
    assert "move it into the function" in error["message"]
    assert driver.reports == []
    assert error["message"] in probe.describe(f"{module}:train")["error"]


PARSES_ARGUMENTS = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
EARLY, REST = parser.parse_known_args()

def train(config):
    return {"acc": parser.parse_args().lr, "early": EARLY.lr, "rest": str(REST)}
"""


def test_code_that_parses_its_command_line_gets_no_arguments(
    drive: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"parses_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(PARSES_ARGUMENTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    driver = drive("train", module, fresh=True)
    driver.begin(target_step=1)
    driver.until_state("ended", "waiting")
    assert driver.reports[0]["metrics"] == {"acc": 0.1, "early": 0.1, "rest": "[]"}


def test_code_that_ends_its_process_at_its_import_fails_with_advice(
    drive: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"exits_early_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('data')\nparser.parse_args([])\n"
        "def train(config): ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    driver = drive("train", module, fresh=True)
    driver.begin(target_step=1)
    error = driver.until_state("failed")["error"]
    assert (error["kind"], error["type"]) == ("import", "SystemExit")
    assert "ended its process with 2 while it was imported" in error["message"]
    assert "argparse" in error["message"]
    assert error["message"] in probe.describe(f"{module}:train")["error"]


def test_generator_of_numpy_is_imported_once_for_all_attempts(
    drive: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NumPy would import it in each attempt, when the attempt seeds the generator. This attempt has no seed."""
    module = f"imports_numpy_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(
        "import sys\nimport numpy\ndef train(config):\n    return {'acc': 1, 'imported': 'numpy.random' in sys.modules}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    driver = drive("train", module, fresh=True)
    driver.run(seed=None)
    assert driver.reports[0]["metrics"] == {"acc": 1, "imported": True}


OF_RAY_TUNE = {
    "function": """
import sys
def train(config):
    is_loaded = "pandas" in sys.modules
    from pathlib import Path
    from ray import tune
    is_loaded = is_loaded or "pandas" in sys.modules
    start = 0
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            start = int(Path(folder, "step").read_text())
    for step in range(start + 1, 4):
        Path("kept").mkdir(exist_ok=True)
        Path("kept", "step").write_text(str(step))
        tune.report({"acc": step, "early": is_loaded, "late": "pandas" in sys.modules},
            checkpoint=tune.Checkpoint.from_directory("kept"))
""",
    "class": """
import sys
from ray import tune
class train(tune.Trainable):
    def setup(self, config):
        self.early = "pandas" in sys.modules
    def step(self):
        return {"acc": self.iteration + 1, "early": self.early, "late": "pandas" in sys.modules}
    def save_checkpoint(self, folder):
        return {"iteration": self.iteration}
    def load_checkpoint(self, state):
        pass
""",
}
READS_TABLES = """
def mean():
    import pandas as pd
    from ray.air.util.data_batch_conversion import _convert_batch_type_to_numpy
    return float(_convert_batch_type_to_numpy(pd.DataFrame({"a": [1.0, 3.0], "b": 0}))["a"].mean())
"""


@pytest.mark.parametrize("kind", ["function", "class"])
@pytest.mark.parametrize("uses_pandas", [False, True], ids=["without pandas", "with pandas"])
def test_pandas_is_imported_with_ray_tune_only_if_the_trainable_uses_it(
    kind: str, uses_pandas: bool, drive: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray Tune itself imports pandas, in a third of a second, but needs it neither for a report nor for a checkpoint.

    A trainable may import pandas inside a function. It is then imported once for all attempts, too.
    """
    module = f"of_ray_tune_{tmp_path.name}"
    source = OF_RAY_TUNE[kind] + (READS_TABLES if uses_pandas else "")
    if uses_pandas:
        source = source.replace('"late": ', '"mean": mean(), "late": ')
    (tmp_path / f"{module}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    driver = drive("train", module, fresh=True)
    driver.save_at(2)
    driver.run_to(3, restore=2)
    metrics = [report["metrics"] for report in driver.reports]
    assert [step["acc"] for step in metrics] == [1, 2, 3]
    assert {(step["early"], step["late"]) for step in metrics} == {(uses_pandas, uses_pandas)}
    assert {step.get("mean") for step in metrics} == {2.0 if uses_pandas else None}


OPTIMISES = """
import sys
import torch

def is_stand_in():
    return type(sys.modules["torch._dynamo"]).__name__ == "StandIn"

def train(config):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    before = model.weight.detach().clone()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    result = {"acc": 1, "learned": not torch.equal(before, model.weight), "is_stand_in": is_stand_in()}
    import torch._dynamo.config as of_compiler
    optimizer.zero_grad()
    torch.compile(optimizer.step, backend="eager")()
    is_imported_once = of_compiler is sys.modules["torch._dynamo"].config
    return {**result, "is_real": is_imported_once and not is_stand_in()}
"""


def test_compiler_is_imported_by_the_first_attempt_that_needs_it_and_then_for_all(
    drive: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Optimizers import torch._dynamo, but need none of it."""
    (tmp_path / "optimises_and_compiles.py").write_text(OPTIMISES)
    monkeypatch.syspath_prepend(str(tmp_path))
    driver = drive("train", "optimises_and_compiles", fresh=True)
    for _ in range(2):
        driver.run(seed=0)
    expected = {"acc": 1, "learned": True, "is_real": True}
    assert [report["metrics"] for report in driver.reports] == [
        {**expected, "is_stand_in": is_stand_in} for is_stand_in in (True, False)
    ]


@pytest.mark.parametrize("of_operator", [None, "/cache"])
def test_attempts_of_a_worker_share_what_the_compiler_has_compiled(
    of_operator: str | None, drive: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    if of_operator:
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", of_operator)
    module = f"compiles_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(
        "import os\ndef train(config):\n"
        "    return {'acc': 1, 'cache': os.environ.get('TORCHINDUCTOR_CACHE_DIR'), 'own': os.getcwd()}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    driver = drive("train", module, fresh=True)
    for _ in range(2):
        driver.run()
    first, second = (report["metrics"] for report in driver.reports)
    assert first["cache"] == second["cache"]
    if of_operator:
        assert first["cache"] == of_operator
    else:
        assert not Path(first["cache"]).is_relative_to(first["own"])
        assert Path(first["cache"]).parent == driver.supervisor._scratch.path


@pytest.mark.parametrize(
    ("threads", "of_operator", "expected"), [("1", None, "1"), ("3,1", None, "3"), ("1", "5", "5")]
)
def test_joblib_uses_the_cpus_of_its_trial(
    threads: str,
    of_operator: str | None,
    expected: str,
    drive: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    if of_operator:
        monkeypatch.setenv("LOKY_MAX_CPU_COUNT", of_operator)
    module = f"uses_joblib_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(
        "import os\nfrom joblib import effective_n_jobs\n"
        "def train(config):\n"
        "    return {'acc': 1, 'most': os.environ.get('LOKY_MAX_CPU_COUNT'), 'jobs': effective_n_jobs(-1)}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    driver = drive("train", module, fresh=True)
    driver.run()
    metrics = driver.reports[0]["metrics"]
    assert metrics["most"] == expected
    assert metrics["jobs"] <= int(expected)


def test_data_of_constants_is_prepared_once_for_all_attempts_of_a_worker(drive: Any) -> None:
    driver = drive("prepares", "tests.worker.prepared_cases", fresh=True, constants={"size": 3, "other": 1})
    for _ in range(2):
        driver.run(config={"size": 3, "x": 1})
    first, second = (report["metrics"] for report in driver.reports)
    assert (first["size"], first["scale"], first["in_this_process"]) == (3, 2.0, 0)
    assert first["pid"] == second["pid"]
    assert first["own"] != second["own"], "each attempt draws its own random numbers"
    driver.run(config={"size": 4, "x": 1})
    other = driver.reports[-1]["metrics"]
    assert (other["size"], other["in_this_process"]) == (4, 1)


def test_dataset_is_downloaded_once_and_counted_for_the_first_attempt(
    drive: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fork server downloads it, so the download must leave no threads, with which it could not be forked. Data
    of which no argument is a constant is computed by the attempt.
    """
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path / "cache"))
    with data_server() as server:
        constants = {"url": server.url()}
        driver = drive("reads", "tests.worker.prepared_cases", fresh=True, constants=constants)
        used = list[Usage]()
        for _ in range(2):
            used.append(parsed(driver.run(config=constants)).usage or Usage())
    assert [report["metrics"]["text"] for report in driver.reports] == ["the data"] * 2
    assert not any(report["metrics"]["in_this_process"] for report in driver.reports)
    assert [(usage.data_read_bytes, usage.data_bucket_bytes) for usage in used] == [(8, 0), (None, None)]
    driver.entry = "tests.worker.prepared_cases:prepares"
    driver.run(config={"size": 3})
    last = driver.reports[-1]["metrics"]
    assert (last["size"], last["in_this_process"]) == (3, 1)


def test_error_while_data_is_prepared_fails_the_attempt_with_its_traceback(drive: Any) -> None:
    driver = drive("train", "tests.worker.prepared_failing", fresh=True)
    driver.begin(target_step=1)
    failed = driver.until_state("failed")
    assert failed["error"]["message"].startswith("/no/such/data")
    assert "def data" in failed["error"]["traceback"] or "in data" in failed["error"]["traceback"]


def test_each_attempt_prepares_the_data_if_that_starts_threads(drive: Any) -> None:
    driver = drive("train", "tests.worker.prepared_threads", fresh=True)
    driver.run()
    assert driver.reports[0]["metrics"]["in_this_process"] == 1


def test_exit_handlers_of_user_code_do_not_run_in_the_fork_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would run after the server has killed all processes that user code started."""
    module, marker = f"registers_at_exit_{tmp_path.name}", tmp_path / "marker"
    (tmp_path / f"{module}.py").write_text(
        f"import atexit, pathlib\natexit.register(pathlib.Path({str(marker)!r}).touch)\n"
        "def train(config):\n    return {'acc': 1}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    driver = Driver(tmp_path / "storage", f"{module}:train", Supervisor(f"{module}:train"))
    driver.run()
    driver.supervisor.close()
    assert driver.supervisor.server.exit_code == 0
    assert not marker.exists()


@pytest.mark.parametrize(
    "end", ["return {'acc': 1}", "raise StopTraining(0)", "raise SystemExit(0)", "raise ValueError"]
)
def test_exit_handlers_that_an_attempt_registers_run_at_its_end(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, marker = f"registers_{tmp_path.name}", tmp_path / "marker"
    (tmp_path / f"{module}.py").write_text(
        "import atexit, pathlib\nfrom tuner.training import StopTraining\n"
        f"def train(config):\n    atexit.register(pathlib.Path({str(marker)!r}).write_text, 'by the attempt')\n    {end}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(child, "EXIT_S", 600.0)
    atexit.register(marker.write_text, "by the fork server")
    try:
        assert _run_child(f"{module}:train", tmp_path) == 0
    finally:
        atexit.unregister(marker.write_text)
    assert marker.read_text() == "by the attempt"


@pytest.mark.parametrize(
    "start",
    [
        "ThreadPoolExecutor().submit(writes)",
        "Thread(target=writes).start()",
        "atexit.register(print); Thread(target=writes).start()",
    ],
)
def test_attempt_ends_when_the_threads_that_it_leaves_have_finished(
    start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, marker = f"leaves_{tmp_path.name}", tmp_path / "marker"
    (tmp_path / f"{module}.py").write_text(
        "import atexit, pathlib, time\nfrom concurrent.futures import ThreadPoolExecutor\nfrom threading import Thread\n"
        f"def writes():\n    time.sleep(0.3)\n    pathlib.Path({str(marker)!r}).touch()\n"
        f"def train(config):\n    {start}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(child, "EXIT_S", 0.0)
    assert _run_child(f"{module}:train", tmp_path) == 0
    assert marker.exists()


@pytest.mark.parametrize(
    "hang",
    [
        "threading.Thread(target=time.sleep, args=(600,)).start(); raise StopTraining(0)",
        "atexit.register(time.sleep, 600)",
    ],
)
def test_exit_handler_or_thread_of_a_stopped_attempt_that_hangs_is_ended(
    hang: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"hangs_at_exit_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(
        f"import atexit, threading, time\nfrom tuner.training import StopTraining\ndef train(config):\n    {hang}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(child, "EXIT_S", 0.01)
    assert _run_child(f"{module}:train", tmp_path) == 0


def _run_child(entry: str, directory: Path) -> int:
    """Run an attempt in a fork of this process, and return its exit status."""
    ours, theirs = Pipe()
    output = os.open(directory / "output", os.O_WRONLY | os.O_CREAT)
    pid = os.fork()
    if pid == 0:
        child.run_child(str(directory), theirs.fileno(), output, "")
    os.close(output)
    theirs.close()
    ours.send_bytes(begin_message(BeginMessage("trial_00000", 1, entry, {}, str(directory / "staging"))))
    with suppress(EOFError, ConnectionResetError):
        while True:
            if json.loads(ours.recv_bytes())["type"] == "report":
                ours.send_bytes(reply_message(stop=False, save=False))
    ours.close()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


HANGS_WITH_A_CHILD = """
import os, pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], start_new_session=True)
pathlib.Path("pids").write_text(f"{os.getpid()} {child.pid}\\n")
time.sleep(60)
"""
STARTS = "import time; from tuner.worker.supervisor import Supervisor; Supervisor('hangs_with_a_child:train'); time.sleep(60)"


def test_server_that_runs_user_code_ends_with_its_worker_and_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "hangs_with_a_child.py").write_text(HANGS_WITH_A_CHILD)
    paths, pids = os.pathsep.join([str(tmp_path), os.getcwd()]), tmp_path / "pids"
    environment = {**os.environ, "PYTHONPATH": paths, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", STARTS], cwd=tmp_path, env=environment) as worker:
        until(lambda: pids.exists() and pids.read_text().endswith("\n"))
        started = [psutil.Process(int(pid)) for pid in pids.read_text().split()]
        worker.kill()
    until(lambda: all(map(is_dead, started)), seconds=30)

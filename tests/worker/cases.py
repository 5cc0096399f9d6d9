"""Trainables that behave well or badly, and some in the style of Ray Tune's examples."""

import contextlib
import math
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.system.user_code.steady import Counter
from tuner.training import Batches, Exported, SpotSafe, artifacts, teacher
from tuner.training.channel import current

not_callable = 3


async def not_awaited(config: dict[str, Any]) -> None: ...


def counts(config: dict[str, Any]) -> None:
    """Report the number of steps done in all attempts: 1, 2, 3, and so on.

    From step `gated` on, each step waits until the file `gate` exists.
    """
    counter = Counter()
    with SpotSafe(counter=counter) as run:
        for step in run.steps():
            time.sleep(config.get("step_s", 0))
            _wait_at_gate(config, step + 1)
            counter.count += 1
            run.report(acc=float(counter.count), pid=os.getpid())


def _wait_at_gate(config: dict[str, Any], step: int) -> None:
    while step >= config.get("gated", math.inf) and not os.path.exists(config["gate"]):
        time.sleep(0.01)


def export(config: dict[str, Any], state: dict[str, Any]) -> Exported:
    """Build a module for a second."""
    assert state["counter"]["count"] == 1
    time.sleep(1)
    return Exported(torch.nn.Linear(2, 1), (torch.zeros(1, 2),), lambda predict: 0.0)


def learns(config: dict[str, Any]) -> None:
    """Report the counter of the teacher's checkpoint and a value of its configuration."""
    given = teacher()
    assert given is not None
    with SpotSafe() as run:
        for _ in run.steps():
            run.report(acc=float(given.state["counter"]["count"]), x=given.config["x"])


def reports_artifacts(config: dict[str, Any]) -> None:
    """Report a file that is replaced in each step, and one of the first step only.

    With `leaves_link` or `evades`, do what hostile code might: leave a link, or report files without the check of `SpotSafe`.
    """
    with SpotSafe() as run:
        for step in run.steps():
            Path("table.csv").write_text(f"step {step + 1}")
            files = {"table.csv": "table.csv", **({"first.txt": "table.csv"} if step == 0 else {})}
            for number in range(1, config.get("evades", 0) + 1):
                artifacts.stage(Path(current().begin.staging), number, {"large": b"12345"})  # type: ignore[union-attr]
                current().report(number, {"acc": 1.0}, resumable=False, artifacts=["large"])  # type: ignore[union-attr]
            if config.get("leaves_link"):
                staging = artifacts.folder_of(Path(current().begin.staging), step + 1)  # type: ignore[union-attr]
                staging.symlink_to(config["leaves_link"])
                current().report(step + 1, {"acc": 1.0}, resumable=False, artifacts=["secret"])  # type: ignore[union-attr]
            run.report(acc=1.0, artifacts=files)


def long_steps(config: dict[str, Any]) -> None:
    """Train ten batches in each step. Report a number that depends on each batch and on a random number drawn for it.

    From the batch `gated` on, counted over all steps, each batch waits until the file `gate` exists.
    """
    counter, batches, rows = Counter(), Batches(10, 1), [0.0]
    with SpotSafe(counter=counter, batches=batches, rows=rows) as run:
        for step in run.steps():
            for batch in batches:
                rows[0] += float(batch[0]) * torch.rand(1).item()
                counter.count += 1
                while counter.count >= config.get("gated", math.inf) and not os.path.exists(config["gate"]):
                    time.sleep(0.01)
                    run.checkpoint_if_due()
            assert int(counter.count) == 10 * (step + 1)
            run.report(acc=rows[0], rung=run.rung, total=run.total_steps)


def loads_first(config: dict[str, Any]) -> None:
    time.sleep(0.5)
    loaded_at = time.monotonic_ns()
    with SpotSafe() as run:
        for _ in run.steps():
            run.report(acc=1.0, loaded_at=loaded_at)


def draws(config: dict[str, Any]) -> None:
    """Report a number from each random generator, and the number of PyTorch threads."""
    with SpotSafe() as run:
        for _ in run.steps():
            drawn = {"python": random.random(), "numpy": np.random.rand(), "torch": torch.rand(1).item()}
            run.report(acc=1.0, threads=torch.get_num_threads(), **drawn)


def splits(config: dict[str, Any]) -> None:
    """Split the data at random before the training. Report a validation example, and a number that is drawn in each step."""
    _, valid = torch.utils.data.random_split(range(10_000), [8_000, 2_000])  # type: ignore[arg-type]
    with SpotSafe() as run:
        for _ in run.steps():
            run.report(acc=1.0, valid=valid[0], drawn=torch.rand(1).item())


class RestoresForEver(Counter):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        while True:
            time.sleep(1)


def restores_for_ever(config: dict[str, Any]) -> None:
    with SpotSafe(counter=RestoresForEver()):
        pass


def hangs(config: dict[str, Any]) -> None:
    while True:
        pass


def exits(config: dict[str, Any]) -> None:
    print("about to leave")
    sys.stdout.flush()
    os._exit(3)


def forks_and_exits(config: dict[str, Any]) -> None:
    """Exit and leave a child that holds the channel and outlives its parent."""
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,)).start()
    os._exit(3)


def exits_politely(config: dict[str, Any]) -> None:
    sys.exit(4)


def ends_early(config: dict[str, Any]) -> None:
    """Report the configured scores, one per step, and end, although the job's last step is a later one."""
    with SpotSafe(counter=Counter()) as run:
        for score, _ in zip(config["scores"], run.steps(), strict=False):
            run.report(acc=score)


def ends_after(config: dict[str, Any]) -> None:
    """Report the configured scores, one per step, and end once the configured file exists."""
    ends_early(config)
    while not Path(config["file"]).exists():
        time.sleep(0.01)


def exits_with_a_message(config: dict[str, Any]) -> None:
    sys.exit("no GPU was found")


def kills_itself(config: dict[str, Any]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kills_itself_in_real_time(config: dict[str, Any]) -> None:
    """Use a real-time signal, which has no name."""
    os.kill(os.getpid(), 40)


def raises(config: dict[str, Any]) -> None:
    raise ValueError("the data is not there")


def raises_without_output(config: dict[str, Any]) -> None:
    """Raise inside a `with` that closes the file to which standard error was redirected."""
    with open("log.txt", "w") as sys.stderr:
        raise ValueError("the data is not there")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def raises_unprintably(config: dict[str, Any]) -> None:
    raise Unprintable


def exits_without_output(config: dict[str, Any]) -> None:
    with open("log.txt", "w") as sys.stderr:
        sys.exit("no GPU was found")


def forks(config: dict[str, Any]) -> Any:
    """Fork a copy of this process. The copy raises an exception, or returns a value. Then this process trains."""
    copy = os.fork()
    if copy == 0:
        if config.get("raises"):
            raise ValueError("raised in the copy")
        return config.get("returns")
    status = os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])
    with SpotSafe(counter=Counter()) as run:
        for _ in run.steps():
            run.report(acc=1.0, status=status)
    return None


def leaves_a_training_thread(config: dict[str, Any]) -> int:
    """Train in a thread, and return an exit status without waiting for the thread."""
    threading.Thread(target=ends_early, args=(config,)).start()
    return 0


def leaves_a_helper_thread(config: dict[str, Any]) -> dict[str, float] | None:
    """Report a step, or return its metrics, while a thread waits for work that never comes."""
    threading.Thread(target=threading.Event().wait).start()
    if config["returns"]:
        return {"acc": 0.9}
    with SpotSafe(counter=Counter()) as run:
        for _ in run.steps():
            run.report(acc=0.9)
            break
    return None


def opens_a_relative_file(config: dict[str, Any]) -> None:
    Path("data/train.npy").read_bytes()


def opens_a_file_that_only_the_user_has(config: dict[str, Any]) -> None:
    Path("/home/me/train.npy").read_bytes()


def misspells_a_parameter(config: dict[str, Any]) -> None:
    config["learning rate"]


def fills_the_gpu(config: dict[str, Any]) -> None:
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.19 GiB"
    )


def prints_much(config: dict[str, Any]) -> None:
    for _ in range(200):
        sys.stdout.write("x" * 1_000_000)
    with SpotSafe() as run:
        for _ in run.steps():
            run.report(acc=1.0)


def nan(config: dict[str, Any]) -> None:
    with SpotSafe() as run:
        for _ in run.steps():
            run.report(acc=float("nan"), tensor=torch.tensor(2.0))


def reports_an_object(config: dict[str, Any]) -> None:
    with SpotSafe() as run:
        for _ in run.steps():
            run.report(acc=object())


def reports_hugely(config: dict[str, Any]) -> None:
    with SpotSafe() as run:
        for _ in run.steps():
            run.report(acc=1.0, text="x" * 2_000_000)


def leaves_children(config: dict[str, Any]) -> None:
    """Leave two children: one in a session of its own, and an ordinary one."""
    sleeper = f"import time; time.sleep(1000)  # {config['mark']}"
    subprocess.Popen([sys.executable, "-c", sleeper])
    subprocess.Popen([sys.executable, "-c", sleeper], start_new_session=True)
    with SpotSafe() as run:
        for _ in run.steps():
            run.report(acc=1.0)


def fast(config: dict[str, Any]) -> None:
    with SpotSafe() as run:
        for step in run.steps():
            run.report(acc=float(step))


def returns(config: dict[str, Any]) -> dict[str, float]:
    return {"acc": config["x"] * 2}


def yields(config: dict[str, Any]) -> Any:
    for step in range(3):
        yield {"acc": step}


def returns_number(config: dict[str, Any]) -> np.float32:
    return np.float32(config["x"] * 2)


def yields_numbers(config: dict[str, Any]) -> Any:
    yield from (0, 1.0, torch.tensor(2))


def returns_nothing_more(config: dict[str, Any]) -> float:
    with SpotSafe() as run:
        for step in run.steps(2):
            run.report(acc=step)
            if step == 1:
                break
    return 5.0


def reports_and_returns_status(config: dict[str, Any]) -> int:
    from ray import tune

    for step in range(2):
        tune.report({"acc": step + 3})
    return 0


def resumes_and_returns_status(config: dict[str, Any]) -> int:
    """Train one step in total."""
    with SpotSafe() as run:
        for step in run.steps():
            if step:
                break
            run.report(acc=3)
    return 0


def shares_arrays_with_joblib(config: dict[str, Any]) -> dict[str, Any]:
    """Return whether joblib would keep arrays that its processes share in the directory of the attempt. Start no processes."""
    from joblib._memmapping_reducer import _get_temp_dir

    return {"acc": 1, "is_own": _get_temp_dir("arrays")[0].startswith(os.getcwd())}


class DiesSaving(Counter):
    def state_dict(self) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGKILL)
        return {}


def dies_saving(config: dict[str, Any]) -> None:
    with SpotSafe(counter=DiesSaving()) as run:
        for _ in run.steps():
            run.report(acc=1.0)


def burns_or_waits(config: dict[str, Any]) -> None:
    """In each step, compute for 0.15 s or sleep for the same time. With `apart`, do so in a forked process."""
    with SpotSafe(counter=Counter()) as run:
        for _ in run.steps():
            if config.get("apart"):
                apart = multiprocessing.get_context("fork").Process(target=_burn, args=(config["burns"],))
                apart.start()
                apart.join()
            else:
                _burn(config["burns"])
            run.report(acc=1.0)


def _burn(burns: bool) -> None:
    if not burns:
        time.sleep(0.15)
    end = time.process_time() + 0.15
    while burns and time.process_time() < end:
        pass


def waits_for_data(config: dict[str, Any]) -> None:
    """Wait `wait_s` for a batch in each step of 0.4 s."""

    def batches() -> Any:
        time.sleep(config["wait_s"])
        yield 1

    with SpotSafe(counter=Counter()) as run:
        for _ in run.steps():
            for _ in run.data(batches()):
                time.sleep(0.4 - config["wait_s"])
            run.report(acc=1.0)


def says_anything_of_its_use(config: dict[str, Any]) -> None:
    from tuner.training import measured

    measured.note(
        **{f"fact {n}": n for n in range(100)}, nan=float("nan"), huge=10**400, surrogate="a\udc80\0"
    )  # type: ignore[arg-type]
    measured._waited_ns[:] = [-5]
    counts(config)


def prints_and_waits(config: dict[str, Any]) -> None:
    os.write(1, "it begins, é\n".encode())
    time.sleep(1000)


def prints_and_dies(config: dict[str, Any]) -> None:
    print("the last words")
    os.kill(os.getpid(), signal.SIGKILL)


def prints_and_ends(config: dict[str, Any]) -> None:
    print("the only words")


def follows_scores(config: dict[str, Any]) -> None:
    """Report the configured scores, one per step. From step `gated` on, each step waits until the file `gate` exists."""
    counter = Counter()
    with SpotSafe(counter=counter) as run:
        for step in run.steps():
            _wait_at_gate(config, step + 1)
            counter.count += 1
            run.report(acc=config["scores"][step])


class Unsaveable(Counter):
    def state_dict(self) -> dict[str, Any]:
        return {"history": deque([self.count])}


def ignores_errors(config: dict[str, Any]) -> None:
    """Catch each error of a report. The state cannot be saved."""
    with SpotSafe(counter=Unsaveable()) as run:
        for _ in run.steps():
            with contextlib.suppress(Exception):
                run.report(acc=1.0)


def ignores_orders(config: dict[str, Any]) -> None:
    """Report steps without regard to the replies. With `saves`, announce a checkpoint of each step."""
    channel = current()
    assert channel is not None
    for step in range(1, 10):
        channel.report(step, {"acc": 1.0}, resumable=True)
        if config["saves"]:
            checkpoint = Path(channel.begin.staging) / f"step_{step}"
            checkpoint.mkdir()
            (checkpoint / "step.txt").write_text(str(step))
            channel.saved(step, str(checkpoint))


def saves_outside(config: dict[str, Any]) -> None:
    """Announce a checkpoint in the working directory."""
    channel = current()
    assert channel is not None
    channel.report(1, {"acc": 1.0}, resumable=True)
    Path("state.txt").write_text("1")
    channel.saved(1, os.getcwd())
    time.sleep(1000)


def fails_to_save(config: dict[str, Any]) -> None:
    """Have no room for a checkpoint of the first step."""
    with SpotSafe(counter=Counter()) as run:
        for step in run.steps():
            place = Path(current().begin.staging) / f"step_{step + 1:08d}"  # type: ignore[union-attr]
            if step == 0:
                place.write_text("in the way")
            run.report(acc=1.0)


def asks_after_the_order(config: dict[str, Any]) -> None:
    """Ask in the middle of a step, although the report before it was answered with an order to stop."""
    channel = current()
    assert channel is not None
    channel.report(1, {"acc": 1.0}, resumable=True)
    channel.ask()

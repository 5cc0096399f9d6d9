"""The batch process, which trains all packed trials of a worker, and its clients in the trials' processes.

Each trial has its own child process. The child makes its model, restores its checkpoint, and connects to the batch process. From then on it
only requests the next step, reports, and fetches the state when a checkpoint is to be written. The connection closes when the child ends or
is killed, and the batch process then drops the trial.

Protocol over an AF_UNIX stream socket, framed as by `multiprocessing.connection`. The child sends a JSON object `{"config"}` and the
state as a file of `torch.save`. After that it sends one request at a time and waits for the reply:

| request | reply |
| --- | --- |
| `{"advance": step}` | `{"metrics"}` after the step was trained, or `{"error", "message", "traceback"}` |
| `{"state": true}` | the state as a file of `torch.save` |

Files are read with `weights_only=True`, so that reading one cannot run code.

Threads: one accepts connections and one per connection reads requests. They only put events into a queue. The main thread does
everything else, so members are changed by one thread only.
"""

import io
import json
import queue
import socket
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, Literal

import torch
from torch import nn

from tuner.training.vmapped import BatchFailed, BatchMember, Config, Recipe, Tensors, Trainer, constants, flat

# How long a step waits for trials that trained the previous step in the same batch and have not requested the next one. A trial reports in
# between, which takes some milliseconds. If it takes longer, as at a rung, the others must not wait.
TOGETHER_S = 0.05


class BatchClient:
    """The batch process as the process of one trial sees it.

    Raises:
        BatchFailed: Training this trial has failed. The error's class has the name of the original class, and its cause the traceback.
        ConnectionError: The batch process has ended. The trial can then continue in its own process.
    """

    def __init__(self, path: str, config: Config, state: Mapping[str, Any]) -> None:
        with _connected():
            stream = socket.socket(socket.AF_UNIX)
            stream.connect(path)
            self._connection = Connection(stream.detach())
            self._connection.send_bytes(json.dumps({"config": dict(config)}).encode())
            self._connection.send_bytes(_file(state))

    def advance(self, step: int) -> dict[str, float]:
        """Train one step and return its metrics. `step` is the number of finished steps."""
        reply = json.loads(self._request({"advance": step}))
        if "error" in reply:
            kind: type[BatchFailed] = type(reply["error"], (BatchFailed,), {})
            raise kind(reply["message"]) from RemoteError(reply["traceback"])
        return dict(reply["metrics"])

    def state(self) -> dict[str, Any]:
        return _read(self._request({"state": True}))

    def close(self) -> None:
        self._connection.close()

    def _request(self, request: Mapping[str, Any]) -> bytes:
        with _connected():
            self._connection.send_bytes(json.dumps(request).encode())
            return self._connection.recv_bytes()


class RemoteError(Exception):
    """The traceback of an error in the batch process."""

    def __init__(self, text: str) -> None:
        super().__init__(f"in the batch process:\n{text}")


@contextmanager
def _connected() -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError) as error:
        raise ConnectionError(
            "the batch process, which trained the packed trials of this worker, has ended. If it ran out of memory, pack fewer trials"
        ) from error


def client_state(module: nn.Module, optimizer: str | None, moments: Tensors) -> dict[str, Any]:
    """Return the state with which a trial joins a batch."""
    return {
        "parameters": flat(module),
        "buffers": constants(module),
        "optimizer": optimizer,
        "moments": moments,
    }


def _file(state: Mapping[str, Any]) -> bytes:
    file = io.BytesIO()
    torch.save(dict(state), file)
    return file.getvalue()


def _read(file: bytes) -> dict[str, Any]:
    return dict(torch.load(io.BytesIO(file), weights_only=True, map_location="cpu"))


class _Trial:
    """A connected trial. `member` is None until its model is made, and after it has failed."""

    def __init__(self, number: int, connection: Connection) -> None:
        self.number, self.connection = number, connection
        self.member: BatchMember | None = None
        self.activity: Literal["idle", "ready", "running"] = "idle"
        self.since = time.monotonic()  #: When `activity` began.

    def becomes(self, activity: Literal["idle", "ready", "running"]) -> None:
        self.activity, self.since = activity, time.monotonic()

    def send(self, message: Mapping[str, Any]) -> None:
        with suppress(OSError):  # the thread that reads the connection notices that it is closed
            self.connection.send_bytes(json.dumps(message).encode())


class BatchServer:
    """Train the trials that connect to a socket, those with equal models in one batch."""

    def __init__(self, recipe: Recipe, listener: socket.socket) -> None:
        self._recipe, self._listener, self._trainer = recipe, listener, Trainer(recipe)
        self._events: queue.SimpleQueue[tuple[_Trial, dict[str, Any] | None]] = queue.SimpleQueue()
        self._trials: dict[int, _Trial] = {}  #: Connected trials, by number.
        #: Members in the middle of a step. Each list trains together.
        self._running: deque[list[BatchMember]] = deque()

    def run(self) -> None:
        """Train until the process is killed.

        Lists of members that cannot train together take turns, one batch each.
        """
        threading.Thread(target=self._accept, name="accept", daemon=True).start()
        while True:
            self._handle_events()
            self._start_steps()
            if self._running:
                self._train_batch(self._running.popleft())

    def _accept(self) -> None:
        number = 0
        while True:
            stream, _ = self._listener.accept()
            trial = _Trial(number, Connection(stream.detach()))
            threading.Thread(target=self._receive, args=[trial], name=f"trial {number}", daemon=True).start()
            number += 1

    def _receive(self, trial: _Trial) -> None:
        """Put the requests of a trial into the queue, and at the end None."""
        # Any error ends the connection: a killed process may leave half a message, and only our own client sends well-formed ones.
        with suppress(Exception):
            joined = json.loads(trial.connection.recv_bytes())
            if "ping" in joined:
                self._events.put((trial, joined))
                return
            self._events.put((trial, {**joined, "joins": _read(trial.connection.recv_bytes())}))
            while True:
                self._events.put((trial, json.loads(trial.connection.recv_bytes())))
        self._events.put((trial, None))

    def _handle_events(self) -> None:
        """Handle the events that have arrived. If nothing can be trained, wait for the next one."""
        timeout = 0.0 if self._running else self._wait_s()
        with suppress(queue.Empty):
            self._handle(*self._events.get(timeout=timeout) if timeout != 0 else self._events.get_nowait())
            while True:
                self._handle(*self._events.get_nowait())

    def _handle(self, trial: _Trial, request: dict[str, Any] | None) -> None:
        if request is None:
            self._drop(trial)
        elif "ping" in request:
            trial.send(request)
            trial.connection.close()
        elif "joins" in request:
            self._trials[trial.number] = trial
            self._join(trial, request["config"], request["joins"])
        elif trial.member is not None and "advance" in request:
            try:
                trial.member.begin(self._recipe, int(request["advance"]))
                trial.becomes("ready")
            except Exception as error:
                self._fail(trial, error)
        elif trial.member is not None and "state" in request:
            state = {"tensors": trial.member.state(), "optimizer": trial.member.optimizer}
            # In a thread, because a process that was suspended does not read, and must not stop the others.
            threading.Thread(target=_send_state, args=[trial.connection, state], daemon=True).start()

    def _join(self, trial: _Trial, config: Config, state: Mapping[str, Any]) -> None:
        try:
            member = BatchMember(trial.number, config, self._recipe.make(config))
            member.load(state["parameters"], state["optimizer"], state["moments"])
            member.load_buffers(state["buffers"])
        except Exception as error:
            self._fail(trial, error)
        else:
            trial.member = member

    def _drop(self, trial: _Trial) -> None:
        """Forget a trial whose process has ended."""
        trial.connection.close()
        self._trials.pop(trial.number, None)
        if trial.member is not None:
            self._remove(trial.member)
            trial.member = None

    def _fail(self, trial: _Trial, error: Exception) -> None:
        """Send an error to a trial, which ends it."""
        if trial.member is not None:
            self._remove(trial.member)
            trial.member = None
        text = "".join(traceback.format_exception(error))
        trial.send({"error": type(error).__name__, "message": str(error), "traceback": text[-8000:]})

    def _remove(self, member: BatchMember) -> None:
        rest = ([other for other in going if other is not member] for going in self._running)
        self._running = deque(going for going in rest if going)
        member.leave()

    def _due(self) -> Iterator[tuple[float, list[_Trial]]]:
        """Yield the trials that are ready to train a step together, with the time until which they wait for others."""
        running = {member.key for going in self._running for member in going}
        ready: dict[Any, list[_Trial]] = {}
        for trial in self._trials.values():
            if trial.member is not None and trial.activity == "ready" and trial.member.key not in running:
                ready.setdefault(trial.member.key, []).append(trial)
        for key, trials in ready.items():
            # `key` of an idle trial is that of its previous step. It is None before the first step, which may have any key.
            awaited = [
                trial.since + TOGETHER_S
                for trial in self._trials.values()
                if trial.member is not None and trial.activity == "idle" and trial.member.key in (key, None)
            ]
            yield max(awaited, default=0.0), trials

    def _wait_s(self) -> float | None:
        """Return how long nothing can be trained unless an event arrives. None means indefinitely."""
        until = min((until for until, _ in self._due()), default=None)
        return None if until is None else max(0.0, until - time.monotonic())

    def _start_steps(self) -> None:
        """Start the steps of the trials that have waited long enough, or have nobody to wait for.

        A trial waits while others with the same key are in the middle of a step. It then trains the next steps together with them.
        """
        now = time.monotonic()
        for until, trials in list(self._due()):
            if until <= now:
                for trial in trials:
                    trial.becomes("running")
                self._running.append([trial.member for trial in trials if trial.member is not None])

    def _train_batch(self, members: Sequence[BatchMember]) -> None:
        result = self._trainer.round(members)
        self._running += result.going
        for member, metrics in result.metrics.items():
            trial = self._trials[member.number]
            trial.becomes("idle")
            trial.send({"metrics": metrics})
        for member, error in result.errors.items():
            self._fail(self._trials[member.number], error)


def _send_state(connection: Connection, state: Mapping[str, Any]) -> None:
    with suppress(OSError):
        connection.send_bytes(_file(state))

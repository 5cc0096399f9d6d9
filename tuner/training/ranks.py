"""Reports and saves of a training on several processes (ranks): rank 0 reports for all, and all ranks do what the reply says.

For this, the ranks exchange messages in separate process groups on the CPU. So they do not disturb the messages of the training, and may
wait for hours for the reply to a report.
"""

import contextlib
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

from tuner.training.channel import Kind, Reply, StopTraining, current
from tuner.training.environments import NO_ARTIFACTS, Artifacts, Home

# The timeout is long, because the service may let a trial wait at a rung. A dead rank is noticed at once, because its connections close.
REPLY_TIMEOUT = timedelta(days=7)
BLOCK_BYTES = 64 << 20  # files are sent to another node in blocks of this size
NOT_JOINED = (
    "this trial has {count} processes, which have not joined a process group: call torch.distributed.init_process_group() before "
    "SpotSafe, or give the job processes_per_node: 1"
)


def rank_count() -> int:
    """Return the number of processes that train together.

    Raises:
        RuntimeError: The service has started several processes, but they have not joined.
    """
    channel = current()
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    if channel is not None and channel.begin.variables:
        raise RuntimeError(NOT_JOINED.format(count=channel.begin.variables["WORLD_SIZE"]))
    return 1


class Ranks:
    """The processes that train together. All ranks must create this object, and call its methods in the same order."""

    def __init__(self) -> None:
        import torch.distributed as distributed

        self._distributed = distributed
        self.rank, self.count = distributed.get_rank(), distributed.get_world_size()
        channel = current()
        variables = channel.begin.variables if channel is not None else {}
        # Under the service, each node has its own directory for checkpoints. `collect` therefore moves the files to rank 0's node.
        self.has_nodes = variables.get("GROUP_WORLD_SIZE", "1") != "1"
        self._sends = variables.get("GROUP_RANK", "0") != "0" and variables["LOCAL_RANK"] == "0"
        # Two groups, because a save is completed in the background while training continues.
        self._replies, self._saves = (
            distributed.new_group(backend="gloo", timeout=REPLY_TIMEOUT) for _ in range(2)
        )

    def agreed(self, reply: Reply | Exception | None) -> Reply:
        """Return rank 0's reply on all ranks, or raise rank 0's exception on all of them. The other ranks pass None."""
        reply = self._of_first(reply, self._replies)
        if isinstance(reply, Exception):
            raise reply
        assert reply is not None
        return reply

    def same_place(self, place: Path | None) -> Path:
        """Return the directory that rank 0 has chosen, on all ranks. The other ranks pass None."""
        return self._of_first(place, self._saves)  # type: ignore[no-any-return]

    def errors(self, error: str | None) -> list[tuple[int, str]]:
        """Wait until all ranks have called this, and return the errors of all ranks, each with the number of its rank.

        `error` is the error of this rank, or None if it has none.
        """
        errors: list[str | None] = [None] * self.count
        self._distributed.all_gather_object(errors, error, group=self._saves)
        return [(rank, text) for rank, text in enumerate(errors) if text is not None]

    def collect(self, directory: Path) -> list[tuple[int, str]]:
        """Move the checkpoint files of ranks on other nodes into rank 0's `directory`, and return the errors of all ranks.

        The first rank of each node sends the files of its node. If a connection fails, an exception is raised.
        """
        sizes: list[dict[str, int]] = [{}] * self.count
        files = sorted(directory.rglob("*")) if self._sends else []
        own = {str(path.relative_to(directory)): path.stat().st_size for path in files if path.is_file()}
        self._distributed.all_gather_object(sizes, own, group=self._saves)
        error = None
        for rank, sizes_of_rank in enumerate(sizes):
            for name, size in sizes_of_rank.items():
                if rank == self.rank:
                    error = self._send(directory / name, size) or error
                elif self.rank == 0:
                    error = self._receive(directory / name, size, rank) or error
        if self._sends:
            shutil.rmtree(directory, ignore_errors=True)
        return self.errors(error)

    def _send(self, path: Path, size: int) -> str | None:
        """Send a file to rank 0. If it cannot be read, send other bytes instead, because rank 0 waits for `size` bytes. Return the error."""
        error = None
        with contextlib.ExitStack() as stack:
            file = None
            for block in _blocks(size):
                try:
                    if error is None:
                        file = file or stack.enter_context(path.open("rb"))
                        if file.readinto(block) != len(block):
                            raise OSError(
                                f"the checkpoint file {path.name} became shorter while it was sent to rank 0"
                            )
                except OSError as failure:
                    error = f"{type(failure).__name__}: {failure}"
                self._distributed.send(_as_tensor(block), 0, group=self._saves)
        return error

    def _receive(self, path: Path, size: int, rank: int) -> str | None:
        """Write a file that another rank sends. If writing fails, still receive the rest, because the rank sends it. Return the error."""
        error = None
        with contextlib.ExitStack() as stack:
            file = None
            for block in _blocks(size):
                self._distributed.recv(_as_tensor(block), rank, group=self._saves)
                try:
                    if file is None:
                        path.parent.mkdir(parents=True, exist_ok=True)
                        file = stack.enter_context(path.open("wb"))
                    file.write(block)
                except OSError as failure:
                    error = f"{type(failure).__name__}: {failure}"
        return error

    def wait(self) -> None:
        """Wait until all ranks have called this."""
        self.errors(None)

    def _of_first(self, value: Any, group: Any) -> Any:
        values = [value]
        self._distributed.broadcast_object_list(values, src=0, group=group)
        return values[0]


def _blocks(size: int) -> Iterator[bytearray]:
    """Yield buffers for the consecutive blocks of a file with `size` bytes. For an empty file, yield one empty buffer."""
    for start in range(0, max(1, size), BLOCK_BYTES):
        yield bytearray(min(BLOCK_BYTES, size - start))


def _as_tensor(block: bytearray) -> Any:
    """Return a tensor that shares the memory of the block."""
    import torch

    return torch.frombuffer(block, dtype=torch.uint8) if block else torch.empty(0, dtype=torch.uint8)


class SharedHome(Home):
    """The destination of reports and checkpoints on each of several ranks. Only rank 0 passes them on to `home`."""

    def __init__(self, home: Home, ranks: Ranks) -> None:
        self._home, self._ranks = home, ranks
        self._place: Path | None = None  # the directory of the save in progress
        self._take_settings(home)

    @property
    def _is_first(self) -> bool:
        return self._ranks.rank == 0

    def phase(self, kind: Kind) -> None:
        if self._is_first:
            self._home.phase(kind)

    def checkpoints(self) -> AbstractContextManager[Sequence[Path]]:
        return self._home.checkpoints()

    def report(self, step: int, metrics: Mapping[str, Any], artifacts: Artifacts = NO_ARTIFACTS) -> Reply:
        return self._agreed(lambda: self._home.report(step, metrics, artifacts))

    def ask(self) -> Reply:
        return self._agreed(self._home.ask)

    def _agreed(self, call: Callable[[], Reply]) -> Reply:
        """Let rank 0 make the call. Return its reply on all ranks, or raise its exception on all ranks."""
        outcome: Reply | Exception | None = None
        if self._is_first:
            try:
                outcome = call()
            except StopTraining:
                outcome = Reply(stop=True, save=False)
            except Exception as error:
                # All ranks raise the error, such as a refused metric, so that user code can repeat the report on all ranks.
                outcome = error
        reply = self._ranks.agreed(outcome)
        if reply.stop and not reply.save and not reply.flush:
            raise StopTraining(0)
        return reply

    def place(self, step: int, part: int = 0) -> Path:
        own = self._home.place(step, part) if self._is_first or self._ranks.has_nodes else None
        self._place = own if self._ranks.has_nodes else self._ranks.same_place(own)
        assert self._place is not None
        return self._place

    def joint_error(self, error: Exception | None) -> Exception | None:
        """Wait until all ranks have written, and return the first error of any rank on all ranks. After an error, remove the checkpoint."""
        errors = self._ranks.errors(None if error is None else f"{type(error).__name__}: {error}")
        if not errors and self._ranks.has_nodes and self._place is not None:
            errors = self._ranks.collect(self._place)
        if not errors:
            return None
        if (self._is_first or self._ranks.has_nodes) and self._place is not None:
            shutil.rmtree(self._place, ignore_errors=True)
        rank, text = errors[0]
        return OSError(f"rank {rank} could not save: {text}")

    def saved(self, step: int, path: Path, part: int = 0) -> None:
        if self._is_first:
            self._home.saved(step, path, part)

    def failed(self, step: int, error: Exception) -> None:
        if self._is_first:
            self._home.failed(step, error)

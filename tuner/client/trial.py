"""`Trial` and `AsyncTrial`: a trial as REST returns it, with methods for its files and its output."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import ConfigDict, PrivateAttr

from tuner.client.bridge import Awaiting, Blocking, call, series
from tuner.client.calls import Calls
from tuner.schemas import answers

if TYPE_CHECKING:
    from tuner.client.downloads import Downloaded


class TrialActions(answers.TrialDetail):
    """A trial in the state of the last fetch: its learning curve, its bill, its attempts and its checkpoints."""

    model_config = ConfigDict(ignored_types=(call, series))

    _client: Any = PrivateAttr()
    _job: str = PrivateAttr()

    @classmethod
    def of(cls, answer: answers.TrialDetail, client: Any, job: str) -> Self:
        trial = cls.model_validate(answer.model_dump())
        trial._client, trial._job = client, job
        return trial

    @call
    async def download(self, to: str | Path, *, step: int | None = None) -> Downloaded:
        """Download a checkpoint of the trial, and check its files.

        Args:
            to: A directory that is empty or does not exist yet.
            step: The step of the checkpoint. None means the one with the best metric.

        Raises:
            ApiError: With status 404 if the checkpoint does not exist, with 422 if the directory has files.
        """
        return await Calls.download_checkpoint.body(self._client, self._job, self.id, to=to, step=step)

    @call
    async def artifacts(self) -> answers.ArtifactList:
        """Return a list, sorted by name, of the files that the trial reported with its metrics."""
        return await Calls.artifacts.body(self._client, self._job, self.id)

    @call
    async def download_artifacts(self, to: str | Path) -> answers.ArtifactList:
        """Download the files that the trial reported, and check their digests. Files of the same names are replaced.

        Args:
            to: A directory. It is created if it does not exist.

        Raises:
            ApiError: With status 422 if the directory cannot be written, and with 0 if a file was damaged on the way.
        """
        return await Calls.download_artifacts.body(self._client, self._job, self.id, to=to)

    @call
    async def logs(self, *, attempt: int | None = None, tail: int | None = None) -> answers.TrialLog:
        """Return the output that the trial's own code printed.

        Args:
            attempt: The attempt's number. None means the newest attempt that printed anything.
            tail: Return at most this many bytes, from the end.

        Raises:
            ApiError: With status 404 if nothing was printed.
        """
        return await Calls.logs.body(self._client, self._job, self.id, attempt=attempt, tail=tail)


class Trial(TrialActions, Blocking):
    """A trial of a `Client`, from `job.trial(id)`."""


class AsyncTrial(TrialActions, Awaiting):
    """A trial of an `AsyncClient`. Its methods are awaited."""

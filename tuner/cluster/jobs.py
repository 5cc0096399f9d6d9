"""Submit and stop Ray Jobs. Each Ray Job runs the driver process of one launch. Submitting the same id again starts nothing."""

from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import quote

from tuner.cluster.dashboard import Dashboard
from tuner.domain.budget import Budget
from tuner.domain.money import MS_PER_HOUR, Cost

JobStatus = Literal["pending", "running", "succeeded", "failed", "stopped", "unknown"]

_STATUS: dict[str, JobStatus] = {
    "PENDING": "pending",
    "RUNNING": "running",
    "SUCCEEDED": "succeeded",
    "FAILED": "failed",
    "STOPPED": "stopped",
}


class RayJobs:
    """Client of Ray's Jobs API. Do not rely on a status alone, because Ray forgets all jobs when its head ends."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard

    def submit(
        self,
        submission_id: str,
        entrypoint: str,
        *,
        env: Mapping[str, str],
        metadata: Mapping[str, str] | None = None,
    ) -> bool:
        """Submit a Ray Job and return True. Return False if a Ray Job with this id exists already.

        Args:
            submission_id: The id of the Ray Job, chosen by the caller.
            entrypoint: The command. Begin it with `exec`, so that signals reach the command and not a shell.
            env: Environment variables. The dashboard shows them, so they must not contain secrets.
            metadata: Texts that the dashboard shows.

        Raises:
            RayUnavailable: It is not known whether the job was submitted. Submitting it again is safe.
        """
        body = {
            "submission_id": submission_id,
            "entrypoint": entrypoint,
            "runtime_env": {"env_vars": dict(env)},
            "metadata": dict(metadata or {}),
        }
        answer = self._dashboard.call("POST", "/api/jobs/", body)
        # The dashboard answers with an internal error (500) when its agent refuses the job. Only the text of the answer contains the reason.
        if not answer.is_success and f"Job with submission_id {submission_id} already exists" in answer.text:
            return False
        self._dashboard.json(answer)
        return True

    def status(self, submission_id: str) -> JobStatus:
        """Return the status of a Ray Job, or "unknown" if the cluster has none with this id."""
        return _STATUS.get(str(self._info(submission_id).get("status")), "unknown")

    def message(self, submission_id: str) -> str:
        """Return Ray's message about a Ray Job, such as why it failed. Return "" if there is none."""
        return str(self._info(submission_id).get("message") or "")

    def stop(self, submission_id: str) -> bool:
        """Have Ray end the driver with SIGTERM, and soon after with SIGKILL. Return without waiting for the end.

        Return False if the cluster has no Ray Job with this id, or if the Ray Job has already ended.
        """
        answer = self._dashboard.call("POST", f"{_path(submission_id)}/stop", {})
        return answer.status_code != 404 and bool(self._dashboard.json(answer).get("stopped"))

    def logs(self, submission_id: str) -> str:
        """Return all output of the driver, or "" if the cluster has no Ray Job with this id."""
        answer = self._dashboard.call("GET", f"{_path(submission_id)}/logs")
        return "" if answer.status_code == 404 else str(self._dashboard.json(answer).get("logs") or "")

    def _info(self, submission_id: str) -> dict[str, Any]:
        answer = self._dashboard.call("GET", _path(submission_id))
        return {} if answer.status_code == 404 else dict(self._dashboard.json(answer))


def money_metadata(budget: Budget, posted: Cost | None = None) -> dict[str, str]:
    """Return the metadata for a Ray Job that describes the tuning job's budget, and its spend if `posted` is given."""
    metadata: dict[str, str] = {}
    if budget.usd is not None:
        metadata["budget_usd"] = _decimal(budget.usd.usd)
    if budget.gpu_ms is not None:
        metadata["budget_gpu_hours"] = _decimal(budget.gpu_ms / MS_PER_HOUR)
    if posted is not None:
        metadata["spent_usd"] = _decimal(posted.usd.usd)
        metadata["spent_gpu_hours"] = _decimal(posted.gpu_ms / MS_PER_HOUR)
    return metadata


def _decimal(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")


def _path(submission_id: str) -> str:
    return f"/api/jobs/{quote(submission_id, safe='')}"

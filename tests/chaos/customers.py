"""Users of a deployment under faults: they submit jobs until each is acknowledged, and follow each job to its
end.
"""

import threading
from random import Random
from typing import Any

from tests.chaos.deployment import Deployment
from tests.chaos.history import History
from tests.system.serving import job
from tuner.client import ApiError

FINAL = ("succeeded", "cancelled", "failed")
AGAIN_S = 0.5
REFUSED_MAX = 60
# On-demand, a GPU costs this or twice as much, and on spot less. Some jobs therefore use up their dollars, and others their GPU-hours.
USD_PER_GPU_HOUR = 0.05


class Customers:
    """Submit jobs, `at_once` at a time, each with a budget in the range `usd`, until `enough()` is called.
    Followers continue until the jobs end.
    """

    def __init__(
        self, deployment: Deployment, history: History, *, seed: int, at_once: int, usd: tuple[float, float]
    ) -> None:
        self._deployment, self._history, self._seed, self._usd = deployment, history, seed, usd
        self._places = threading.Semaphore(at_once)
        self._enough, self._given_up = threading.Event(), threading.Event()
        self.live: dict[str, threading.Thread] = {}
        self.errors: list[BaseException] = []
        self._submitting = threading.Thread(target=self._guarded, args=(self._submit_all,), daemon=True)
        self._submitting.start()

    def enough(self) -> None:
        """Stop submitting new jobs. A submission in progress is completed."""
        self._enough.set()
        self._submitting.join(120)

    def give_up(self) -> None:
        self._enough.set()
        self._given_up.set()

    def _guarded(self, work: Any, *args: Any) -> None:
        try:
            work(*args)
        except Exception as error:
            self.errors.append(error)
            self._history.write("error", said=repr(error))

    def _submit_all(self) -> None:
        rng, number = Random(self._seed), 0
        while not self._enough.is_set():
            if not self._places.acquire(timeout=0.2):
                continue
            number += 1
            key, wanted = f"chaos-{self._seed}-{number}", self._wanted(rng)
            self._history.write("ask", key=key, budget=wanted["budget"])
            job_id = self._submit(key, wanted, number)
            if job_id is None:
                self._places.release()
                continue
            if rng.random() < 0.5:
                self._submit(key, wanted, number + 1)
            follower = threading.Thread(
                target=self._guarded, args=(self._follow, job_id, number), daemon=True
            )
            self.live[job_id] = follower
            follower.start()

    def _wanted(self, rng: Random) -> dict[str, Any]:
        markets = ("on_demand", "spot_with_fallback") if self._deployment.cluster else ("on_demand",)
        usd = round(rng.uniform(*self._usd), 6)
        return job(
            "steady:train",
            budget={"usd": usd, "gpu_hours": round(usd / USD_PER_GPU_HOUR, 6)},
            constants={"step_s": 0.2},
            resources={"gpus": 1, "max_concurrent_trials": rng.randint(1, 2), "market": rng.choice(markets)},
            algorithm={"scheduler": "asha", "sampler": "random", "seed": rng.randrange(1000)},
        )

    def _submit(self, key: str, wanted: dict[str, Any], number: int) -> str | None:
        """Submit until acknowledged. Return None if the service refused it REFUSED_MAX times, for example
        because the machine it needs is away.
        """
        refused = 0
        while not self._given_up.is_set() and refused < REFUSED_MAX:
            try:
                with self._deployment.client(number) as client:
                    job_id = client.submit(wanted, idempotency_key=key).id
                self._history.write("submitted", key=key, job=job_id)
                return job_id
            except ApiError as error:
                refused += 400 <= error.status < 500
                self._failed(error)
        return None

    def _failed(self, error: ApiError) -> None:
        self._history.write("failed", status=error.status, said=str(error)[:300])
        self._given_up.wait(AGAIN_S)

    def _follow(self, job: str, number: int) -> None:
        reported: dict[tuple[str, int], float | None] = {}
        after, state = 0, ""
        while state not in FINAL and not self._given_up.is_set():
            try:
                with self._deployment.client(number) as client:
                    for event in client.events(job, after=after):
                        after = event.id if event.id is not None else after
                        if event.type == "report":
                            self._report(job, event.data, reported)
                        elif event.type == "job" and event.data["state"] != state:
                            state = event.data["state"]
                            self._history.write("state", job=job, state=state)
            except ApiError as error:
                self._failed(error)
        self.live.pop(job, None)
        self._places.release()

    def _report(self, job: str, report: dict[str, Any], before: dict[tuple[str, int], float | None]) -> None:
        """Record a report when it first arrives, and again if its value differs: a reconnected stream repeats a
        few reports.
        """
        place, value = (report["trial"], report["step"]), report["metric"]
        if place not in before or before[place] != value:
            before[place] = value
            self._history.write("report", job=job, trial=place[0], step=place[1], value=value)

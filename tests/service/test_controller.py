"""The controller over a fake cluster: what it launches, and in which order."""

from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from tests import fakes
from tests.fakes import FakeService
from tests.service.passes import end, give_room, launch_of, launched, one_pass, submit
from tuner.domain.errors import Unavailable
from tuner.service.controller import QUICK_DEATHS_MAX, Controller
from tuner.store import jobs


def test_job_is_launched_while_an_export_cannot_be_submitted(
    service: FakeService, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise Unavailable("the cluster refuses the export")

    job = submit(service, client)
    monkeypatch.setattr("tuner.service.exports.ExportSupervisor.one_pass", fails)
    with pytest.raises(Unavailable, match="refuses the export"):
        one_pass(service)
    assert launched(service) == [job]


def test_submitted_job_is_launched_once_with_its_name_and_budget(
    service: FakeService, client: TestClient
) -> None:
    job = submit(service, client)
    for _ in range(3):
        one_pass(service)
    assert service.cluster.submitted == [f"{job}-1"]
    assert launch_of(service, job).state == "submitted"
    metadata = service.cluster.told_about[f"{job}-1"]
    shown = client.get(f"/v1/jobs/{job}").json()
    assert metadata["job_name"] == shown["name"]
    assert float(metadata["budget_usd"]) == shown["budget"]["usd"]
    assert "owner" not in metadata


def test_highest_priority_is_launched_first_and_equal_priorities_in_order(
    service: FakeService, client: TestClient
) -> None:
    give_room(service)
    low, first, second, high = (submit(service, client, priority=priority) for priority in (-5, 0, 0, 9))
    one_pass(service)
    assert launched(service) == [high, first, second, low]


def test_job_without_room_waits_until_the_running_job_ends(service: FakeService, client: TestClient) -> None:
    first, second = submit(service, client), submit(service, client)
    for _ in range(3):
        one_pass(service)
    assert launched(service) == [first]
    end(service, first)
    one_pass(service)
    assert launched(service) == [first, second]


def test_jobs_that_fit_together_run_at_once(service: FakeService, client: TestClient) -> None:
    give_room(service, cpus=4)
    made = [submit(service, client) for _ in range(3)]
    one_pass(service)
    assert launched(service) == made[:2]


def test_trials_that_share_workers_leave_room_for_other_jobs(
    service: FakeService, client: TestClient
) -> None:
    give_room(service, cpus=4)
    wanted = {"max_concurrent_trials": 4}
    packed = []
    for pack in (2, 4, 2):
        packed.append(fakes.submit(client, resources={**wanted, "pack": pack}))
        service.now.pass_s(1)
    one_pass(service)
    assert launched(service) == packed[:2]


def test_changed_concurrency_of_a_running_job_counts_against_the_room(
    service: FakeService, client: TestClient
) -> None:
    """The controller keeps the rows of jobs between its passes, and a PATCH changes the concurrency of a kept row."""
    give_room(service, cpus=4)
    controller = Controller(service)
    running, waiting = submit(service, client), submit(service, client)
    narrow = client.patch(f"/v1/jobs/{running}", json={"max_concurrent_trials": 4})
    assert narrow.status_code == 200, narrow.text
    controller.one_pass()
    controller.one_pass()
    assert launched(service) == [running]
    client.patch(f"/v1/jobs/{running}", json={"max_concurrent_trials": 1})
    controller.one_pass()
    assert launched(service) == [running, waiting]


def test_smaller_job_does_not_overtake_a_job_that_does_not_fit(
    service: FakeService, client: TestClient
) -> None:
    give_room(service, cpus=3)
    first, large = submit(service, client), submit(service, client)
    fakes.submit(client, resources={"max_concurrent_trials": 1})
    one_pass(service)
    assert launched(service) == [first]
    assert launch_of(service, large).state == "wanted"


def two_markets(service: FakeService, *, spot: int, on_demand: int) -> None:
    """Give the cluster nodes of two CPUs on both markets."""
    labels = {"ray.io/market-type": "spot", "usd-per-hour": "0.02"}
    service.cluster.fake_nodes = [
        *(replace(fakes.SMALL, id=f"s{number}", labels=labels) for number in range(spot)),
        *(replace(fakes.SMALL, id=f"d{number}") for number in range(on_demand)),
    ]


def on(service: FakeService, client: TestClient, market: str, trials: int = 2) -> str:
    """Submit a job for this market, after advancing the clock by a second."""
    service.now.pass_s(1)
    return fakes.submit(client, resources={"market": market, "max_concurrent_trials": trials})


def test_waiting_job_blocks_only_jobs_for_the_same_nodes(service: FakeService, client: TestClient) -> None:
    two_markets(service, spot=1, on_demand=1)
    running = on(service, client, "spot")
    one_pass(service)
    waiting = on(service, client, "spot")
    either = on(service, client, "spot_with_fallback")  # waits because an earlier job needs the same nodes
    demand = on(service, client, "on_demand")
    one_pass(service)
    assert launched(service) == [running]
    assert client.post(f"/v1/jobs/{either}/cancel").status_code == 202
    one_pass(service)
    assert launched(service) == [running, demand]
    assert launch_of(service, waiting).state == "wanted"


def test_missing_spot_machines_do_not_block_on_demand_jobs(service: FakeService, client: TestClient) -> None:
    two_markets(service, spot=1, on_demand=1)
    running, waiting, demand = (
        on(service, client, "spot"),
        on(service, client, "spot"),
        on(service, client, "on_demand"),
    )
    del service.cluster.fake_nodes[0]
    one_pass(service)
    assert launched(service) == [running, demand]
    assert launch_of(service, waiting).state == "wanted"


def test_job_with_fallback_is_not_counted_only_against_spot_nodes(
    service: FakeService, client: TestClient
) -> None:
    two_markets(service, spot=1, on_demand=2)
    # four of the six CPUs that the two on-demand nodes have
    either = on(service, client, "spot_with_fallback", 4)
    spot, demand = on(service, client, "spot"), on(service, client, "on_demand")
    one_pass(service)
    assert launched(service) == [either, spot]
    assert launch_of(service, demand).state == "wanted"


def test_changed_priority_reorders_waiting_jobs(service: FakeService, client: TestClient) -> None:
    first, second, third = (submit(service, client) for _ in range(3))
    one_pass(service)
    client.patch(f"/v1/jobs/{third}", json={"priority": 1})
    end(service, first)
    one_pass(service)
    assert launched(service) == [first, third]
    assert launch_of(service, second).state == "wanted"


def test_owners_take_turns_when_room_is_scarce(service: FakeService, client: TestClient) -> None:
    small = {"usd": 0.0002}
    greedy = [submit(service, client, tags={"owner": "alice"}, budget=small) for _ in range(3)]
    others = [
        submit(service, client, tags={"owner": "bob"}, budget=small),
        submit(service, client, budget=small),
    ]
    turns = [greedy[0], *others, greedy[1], greedy[2]]
    for n, job in enumerate(turns):
        places = [client.get(f"/v1/jobs/{waiting_job}").json()["queue_position"] for waiting_job in turns[n:]]
        assert places == list(range(1, len(turns) - n + 1))
        one_pass(service)
        assert launched(service) == turns[: n + 1]
        assert client.get(f"/v1/jobs/{job}").json()["queue_position"] is None
        fakes.simulate(service, job)


def test_owner_without_running_jobs_goes_first(service: FakeService, client: TestClient) -> None:
    give_room(service, cpus=4)
    mine = [submit(service, client, tags={"owner": "alice"}) for _ in range(3)]
    one_pass(service)
    bobs = submit(service, client, tags={"owner": "bob"})
    end(service, mine[0])
    one_pass(service)
    assert launched(service) == [*mine[:2], bobs]


def test_owner_with_less_spend_in_the_last_day_goes_first(service: FakeService, client: TestClient) -> None:
    first = submit(service, client, tags={"owner": "alice"}, budget={"usd": 0.0002})
    one_pass(service)
    fakes.simulate(service, first)
    alices, bobs = (
        submit(service, client, tags={"owner": "alice"}),
        submit(service, client, tags={"owner": "bob"}),
    )
    assert client.get(f"/v1/jobs/{bobs}").json()["queue_position"] == 1
    service.now.pass_s(86400)
    assert client.get(f"/v1/jobs/{alices}").json()["queue_position"] == 1


def test_job_is_submitted_with_a_priority(service: FakeService, client: TestClient) -> None:
    last, first = (
        submit(service, client, tags={"owner": "alice"}),
        submit(service, client, tags={"owner": "alice"}, priority=3),
    )
    shown = client.get(f"/v1/jobs/{first}").json()
    assert (shown["priority"], shown["queue_position"]) == (3, 1)
    client.patch(f"/v1/jobs/{last}", json={"priority": 4})
    assert [job["queue_position"] for job in client.get("/v1/jobs").json()["items"]] == [2, 1]


def test_job_paused_or_cancelled_while_queued_is_not_launched(
    service: FakeService, client: TestClient
) -> None:
    give_room(service)
    paused, cancelled = submit(service, client), submit(service, client)
    client.post(f"/v1/jobs/{paused}/pause")
    client.post(f"/v1/jobs/{cancelled}/cancel")
    one_pass(service)
    assert launched(service) == []
    client.post(f"/v1/jobs/{paused}/resume")
    one_pass(service)
    assert service.cluster.submitted == [f"{paused}-2"]


def test_job_paused_before_it_began_returns_to_the_queue(service: FakeService, client: TestClient) -> None:
    give_room(service, cpus=2)
    at_work = submit(service, client)
    one_pass(service)
    paused = submit(service, client)
    client.post(f"/v1/jobs/{paused}/pause")
    resumed = client.post(f"/v1/jobs/{paused}/resume").json()
    assert (resumed["state"], resumed["queue_position"]) == ("queued", 1)
    one_pass(service)
    assert service.cluster.submitted == [f"{at_work}-1"]


def test_driver_of_a_submission_with_lost_response_is_kept(service: FakeService, client: TestClient) -> None:
    job = submit(service, client)
    service.cluster.failures_left = 1
    with pytest.raises(Unavailable):
        one_pass(service)
    for _ in range(3):
        one_pass(service)
    assert service.cluster.submitted == [f"{job}-1"]
    assert (launch_of(service, job).state, launch_of(service, job).epoch) == ("submitted", 1)


def test_refused_driver_is_submitted_again_and_the_job_keeps_its_place(
    service: FakeService, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(service, client)
    service.now.pass_s(5)
    later = submit(service, client)
    wanted_at = launch_of(service, job).wanted_at

    def refuse(submission_id: str, **_: object) -> None:
        raise Unavailable("the agent refused the job")

    for epoch in range(1, 2 * QUICK_DEATHS_MAX):
        with monkeypatch.context() as patch:
            patch.setattr(service.cluster, "submit", refuse)
            with pytest.raises(Unavailable):
                one_pass(service)
        assert launch_of(service, job).epoch == epoch
        one_pass(service)  # Ray does not know the driver
    service.cluster.unfit = "it has Ray 2.9.0"
    failures = service.health.counted("launch_failures")
    for _ in range(3):
        one_pass(service)
    assert service.health.counted("launch_failures") == failures + 3
    service.cluster.unfit = ""
    one_pass(service)
    launch = launch_of(service, job)
    assert service.cluster.submitted == [launch.submission_id]
    assert (launch.quick_deaths, launch.wanted_at) == (0, wanted_at)
    assert launch_of(service, later).state == "wanted"
    assert service.health.counted("driver_restarts") == 0


def test_job_waiting_for_its_window_is_not_read_in_every_pass(
    service: FakeService, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of jobs may wait for their windows, and the controller runs four passes per second."""
    later = [fakes.submit(client, window={"start": "00:00", "end": "00:10"}) for _ in range(3)]
    running = submit(service, client)
    controller = Controller(service)
    controller.one_pass()
    assert launched(service) == [running]
    read: list[str] = []
    get = jobs.get
    monkeypatch.setattr(jobs, "get", lambda db, job: read.append(job) or get(db, job))  # type: ignore[func-returns-value]
    controller.one_pass()
    assert set(read).isdisjoint(later)

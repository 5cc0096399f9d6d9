"""Client scenarios ("chapters") that together pass every commit. Each can be restarted at any point and then
continues.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from tests.failpoints.life import NODES, SPOT, UNPRICED, Life
from tests.mirrors.following import follower
from tests.packages.making import plain
from tests.service.restoring import back_up, put_back
from tests.upgrades import made_up
from tuner.database.database import newest_revision
from tuner.domain.errors import Fenced
from tuner.domain.job import FINAL
from tuner.domain.time import NS
from tuner.service import packages
from tuner.simulator.world import SimulatedRun
from tuner.worker.self_test import Verdict

SMALL, MORE, SPOT_USD = 0.0001, 0.0004, 0.0004
URL = "http://127.0.0.1:9/hook"


def schema(life: Life) -> None:
    """Migrate an empty database and run a small job in it."""
    life.service.database.migrate()
    life.submit("first", usd=SMALL)
    life.finish()


def older(life: Life) -> None:
    """Let a newer version upgrade the schema, and downgrade it again."""
    database, revision = life.service.database, newest_revision()
    if "downgraded" not in life.acks:
        with made_up.known(life.service.settings.home / "newer"):
            database.migrate()
            database.downgrade(revision)
        life.acks["downgraded"] = ""
        life.tell("ack", "downgraded", "")
    life.submit("first", usd=SMALL)
    life.finish()


def turns(life: Life) -> None:
    """Run a job whose trials are promoted."""
    life.submit("whole", usd=MORE)
    life.finish()


def queue(life: Life) -> None:
    """Pause, resume, top up, steer and cancel jobs before they run; then stop the service."""
    first = life.submit("first", usd=SMALL / 2)
    life.ask("pause", "POST", f"/v1/jobs/{first}/pause")
    life.ask("resume", "POST", f"/v1/jobs/{first}/resume")
    life.ask("more", "PATCH", f"/v1/jobs/{first}", budget={"usd": SMALL})
    second = life.submit("second")
    life.ask("steer", "POST", f"/v1/jobs/{second}/trials", config={"lr": 0.1, "width": 9})
    life.ask("cancel", "POST", f"/v1/jobs/{second}/cancel")
    life.finish()
    life.service.leading.give_up()


def cancelled(life: Life) -> None:
    """Cancel a job while it runs."""
    job = life.submit("runs", usd=0.004)
    if life.launch(job) and (run := life.drive(job, messages=12)) is not None:
        life.ask("stop", "POST", f"/v1/jobs/{job}/cancel")
        life.go_on(run)
    life.ask("stop", "POST", f"/v1/jobs/{job}/cancel")
    life.finish()
    assert life.row(job).state == "cancelled"


def hangs(life: Life) -> None:
    """A driver stops sending heartbeats and is replaced; then the first driver wakes up."""
    job = life.submit("hangs", usd=MORE)
    if life.launch(job):
        first = life.drive(job, messages=15)
        assert first is not None
        submission = f"{job}-{life.post(job).epoch}"
        for seconds in (100, 5, 5, 5, 5):
            if submission not in life.service.cluster.stopped:
                life.pass_s(seconds)
        assert submission in life.service.cluster.stopped
        life.service.cluster.statuses[submission] = "failed"
        if life.launch(job):
            second = life.drive(job, messages=5)
            assert second is not None
            wakes_up(life, first)
            life.go_on(second)
    life.finish()


def wakes_up(life: Life, run: SimulatedRun) -> None:
    """Continue the replaced driver, which must be fenced."""
    try:
        life.go_on(run)
    except Fenced:
        return
    raise AssertionError("a driver that was replaced went on")


def dies(life: Life) -> None:
    """Let drivers die at their start until the job fails."""
    job = life.submit("dies")
    for _ in range(20):
        if not life.launch(job):
            break
        life.service.cluster.statuses[f"{job}-{life.post(job).epoch}"] = "failed"
    assert life.row(job).state == "failed"


def hours(life: Life) -> None:
    """A job is due when its window has closed."""
    hour = datetime.fromtimestamp(life.service.now() // NS, UTC).hour
    life.submit("later", usd=SMALL, window={"start": f"{hour:02}:00", "end": f"{(hour + 1) % 24:02}:00"})
    life.pass_s(7200)
    life.finish()


def limits(life: Life) -> None:
    """Exhaust a shared budget, deliver its alert, raise it, and remove it."""
    alerts = [{"at": 0.5, "url": URL}]
    life.ask("limit", "PUT", "/v1/budgets/all", usd=SMALL, alerts=alerts)
    bounded = life.submit("bounded", usd=2 * SMALL)
    if "raise" not in life.acks and life.row(bounded).state not in FINAL:
        for _ in range(50):
            if life.row(bounded).state == "paused" or not life.launch(bounded):
                break
            life.drive(bounded)
        for _ in range(3):
            life.pass_s(30)
    life.ask("raise", "PUT", "/v1/budgets/all", usd=1, alerts=alerts)
    life.finish()
    if "remove" not in life.acks:
        life.pass_s(60)
        if (response := life.client.get("/v1/budgets/all")).status_code == 200:
            assert [delivery["state"] for delivery in response.json()["deliveries"]] == ["delivered"]
        life.ask("remove", "DELETE", "/v1/budgets/all", done=404)


def people(life: Life) -> None:
    """Give a user a key in a project with a quota, rotate it, and revoke everything."""
    life.ask("project", "POST", "/v1/projects", name="vision", done=409)
    life.ask("quota", "PUT", "/v1/quota", concurrent_jobs=5)
    life.ask("member", "PUT", "/v1/members/ada", role="submitter")
    key = life.ask("key", "POST", "/v1/keys", user="ada", name="hers")
    another = life.ask("rotate", "POST", f"/v1/keys/{key}/rotate", done=409)
    life.ask("revoke", "DELETE", f"/v1/keys/{another or key}")
    life.ask("disable", "PATCH", "/v1/users/ada", disabled=True)
    life.ask("leave", "DELETE", "/v1/members/ada", done=404)
    assert {api_key["state"] for api_key in life.client.get("/v1/keys").json()["items"]} == {"revoked"}
    life.submit("theirs", usd=SMALL)
    life.finish()


def uploaded(life: Life) -> None:
    """Upload a package, and upload it again if the first upload was not acknowledged."""
    service = life.service
    on = replace(service, settings=replace(service.settings, packages=True))
    if "package" not in life.acks:
        life.tell("ack", "package", packages.put(on, plain(), "mine")[0].id)
    assert [row.name for row in packages.page(on, before=None, limit=9)] == ["mine"]
    life.submit("another", usd=SMALL)
    life.finish()


def mirrored(life: Life) -> None:
    """A mirror follows the events, and the service stops."""
    job = life.submit("seen", usd=SMALL)
    life.finish()
    mirror = Mirror()
    mirror_thread = follower(life.service, lambda: mirror)
    mirror_thread.one_pass()
    assert mirror.states == {job: "succeeded"}
    mirror_thread._release()


def forgetful(life: Life) -> None:
    """The trainable fails the restore self-test."""
    life.service.cluster.fake_nodes = NODES
    job = life.submit("forgets", usd=SPOT_USD, resources=SPOT)
    life.verdicts[job] = Verdict(False, "it forgets")
    life.finish()
    assert life.row(job).state == "failed"


def slow(life: Life) -> None:
    """The restore self-test gets a machine without a price before another one, and does not finish. It may be passed the next time."""
    life.service.cluster.fake_nodes = NODES
    job = life.submit("slow", usd=SPOT_USD, resources=SPOT)
    life.machines[job] = [UNPRICED, None]
    life.verdicts[job] = Verdict(False, "it did not finish in time", lasting=False)
    life.finish()
    assert life.row(job).state == "succeeded"


def restored(life: Life) -> None:
    """Make a backup while a job runs, and restore it over the current database."""
    kept = life.submit("kept", usd=SMALL)
    if life.launch(kept):
        life.drive(kept)
    half = life.submit("half", usd=MORE)
    file = life.service.settings.home / "backup"
    if not file.exists():
        if life.launch(half):
            life.drive(half, messages=20)
        life.service.leading.give_up()
        back_up(life.service, file)
    if "restored" not in life.acks:
        while life.service.leading.is_led():  # the term of a killed restore lasts for some seconds
            time.sleep(0.1)
        life.service.database.dispose()
        put_back(life.service, file)
        life.acks["restored"] = ""
        life.tell("ack", "restored", "")
    for name in life.service.cluster.statuses:
        life.service.cluster.statuses[name] = "failed"
    life.begin(life.service.settings)
    life.ask("again", "POST", f"/v1/jobs/{half}/resume")
    life.finish()


def exported(life: Life) -> None:
    """Export a job twice: the first process dies before it has a machine, and the second succeeds."""
    job = life.submit("first", usd=SMALL)
    life.finish()
    life.ask("more", "PATCH", f"/v1/jobs/{job}", budget={"usd": 0.1})
    for number in (1, 2):
        life.ask(f"export {number}", "POST", f"/v1/jobs/{job}/exports", done=409, formats=["onnx"])
        life.pass_s(5)
        life.export(job, dies=number == 1)
        for _ in range(3):
            life.pass_s(60)


def stored(life: Life) -> None:
    """Remove the files that a job's retention no longer keeps, and then all others at the user's request."""
    job = life.submit("stored", usd=SMALL, artifacts={"retain": "best"})
    life.finish()
    for _ in range(3):
        life.pass_s(24 * 3600)
        life.lifecycle.one_pass()
    life.ask("delete", "DELETE", f"/v1/jobs/{job}/artifacts")
    life.lifecycle.one_pass()


class Mirror:
    """A mirror that keeps the last state reported for each job."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}

    def positions(self) -> dict[str, Any]:
        return {}

    def write(self, changes: Any) -> bool:
        self.states[changes.job.id] = changes.job.state
        return True

    def close(self) -> None:
        return


# A commit is tested in the first chapter that passes it.
CHAPTERS: Mapping[str, Callable[[Life], None]] = {
    chapter.__name__: chapter
    for chapter in (
        turns,
        schema,
        older,
        queue,
        cancelled,
        hangs,
        dies,
        hours,
        limits,
        people,
        uploaded,
        mirrored,
        forgetful,
        exported,
        stored,
        slow,
        restored,
    )
}
EMPTY = ("schema",)

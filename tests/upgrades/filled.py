"""Fill every table of a database the way members, drivers and services do."""

from contextlib import ExitStack
from pathlib import Path

from tests import fakes
from tests.failpoints.chapters import Mirror, cancelled, exported, forgetful, hangs, people
from tests.failpoints.life import Earlier, Life, surroundings
from tests.mirrors.following import follower
from tuner.domain.usage import Usage
from tuner.store import packages, stored_files
from tuner.store.packages import PackageRow

ALERTS = [{"at": 0.1, "url": "http://127.0.0.1:9/hook"}]


def fill(url: str, home: Path) -> None:
    """Fill the database with ended, paused, running and waiting jobs."""
    with ExitStack() as stack:
        stack.enter_context(surroundings(lambda *_: None))
        life = Life(url, home, "", Earlier(), lambda *_: None, 0)
        service = life.service
        stack.callback(service.database.dispose)
        cancelled(life)
        hangs(life)
        forgetful(life)
        people(life)
        exported(life)
        life.ask("another member", "PUT", "/v1/members/grace", role="admin")
        life.service.cluster.fake_nodes = [fakes.SMALL]
        source = life.acks["submit hangs"]
        life.submit("learns", usd=0.0001, warm_start={"jobs": [source]}, tags={"team": "vision"})
        life.submit("student", usd=0.0001, teacher={"job": life.acks["submit first"]})
        life.finish()
        fakes.stand_idle(service, NODE, looks=3, seconds=5)
        _wait_for_money(life)
        running = life.submit("goes on", usd=0.001)
        assert life.launch(running)
        run = life.drive(running, messages=15)
        assert run is not None
        with run.loop.journal.transaction() as tx:
            tx.put_usage("trial_00000", 1, Usage(wall_ns=5, cpu_ns=3, facts={"precision": "fp32"}))
        life.ask("enqueued", "POST", f"/v1/jobs/{running}/trials", config={"lr": 0.1, "width": 9})
        follower(service, Mirror).one_pass()
        life.reconciler.one_pass()
        with service.database.write() as db:
            packages.put(db, "default", PackageRow("a" * 64, "mine", 100, 1, service.now()))
            due = stored_files.DueMeasurement(source, "default")
            stored_files.record_sizes(db, {due: 1000}, service.now())
            stored_files.order_removal(db, source, "default", service.now(), kept=(), exported=())


def _wait_for_money(life: Life) -> None:
    """Create a shared budget that is too small for its job to continue."""
    life.ask("limit", "PUT", "/v1/budgets/sound", usd=0.0002, match={"team": "sound"}, alerts=ALERTS)
    waits = life.submit("waits", usd=0.001, tags={"team": "sound"})
    for _ in range(50):
        if life.row(waits).state == "paused" or not life.launch(waits):
            break
        life.drive(waits)
    assert life.row(waits).state == "paused"
    life.pass_s(30)


NODE = fakes.Node("idle", cpus=4, gpus=0, memory_bytes=8 << 30, labels={"usd-per-hour": "0.2"})

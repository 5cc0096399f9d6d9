"""The dialog of a trial: keyboard use, and the live log of each attempt."""

import base64
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect
from sqlalchemy import update

from tests.browser.conftest import FIDELITY, Finished, Site, expect_all_reports, see, violations
from tuner.checkpoints.artifacts import TrialArtifacts
from tuner.checkpoints.attempt_logs import Printed, TrialLogs
from tuner.database.tables import trials
from tuner.domain.events import PromoteRequested, StopRequested
from tuner.simulator.world import Faults
from tuner.store import jobs

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
pytestmark = [pytest.mark.browser, pytest.mark.needs("chromium")]


def test_best_trial_can_be_opened_by_keyboard(page: Page, finished: Finished) -> None:
    job = finished.job
    see(page, finished, job)
    expect_all_reports(page, finished, job)
    chart = page.get_by_role("group", name="Learning curves of")
    chart.focus()
    chart.press("ArrowDown")
    best = finished.get(f"/jobs/{job}")["best"]
    name = f"Trial #{int(best['trial'][6:])}"
    expect(page.get_by_text(f"{name}: ")).to_be_visible()
    chart.press("Enter")
    dialog = page.get_by_role("dialog", name=name)
    detail = finished.get(f"/jobs/{job}/trials/{best['trial']}")
    attempts = dialog.get_by_role("region", name="Attempts of the trial").locator("tbody tr")
    expect(attempts).to_have_count(len(detail["attempt_list"]))
    expect(dialog).to_contain_text("printed nothing")
    assert violations(page) == []
    page.keyboard.press("Escape")
    expect(dialog).not_to_be_visible()
    expect(chart).to_be_focused()


def test_trial_is_promoted_and_stopped(page: Page, site: Site) -> None:
    job = site.submit(
        fidelity=FIDELITY, budget={"usd": 0.03}, algorithm={"scheduler": "asha", "sampler": "random"}
    )
    site.simulate(job, messages=300)
    items = site.get(f"/jobs/{job}/trials", limit=500)["items"]
    paused, done, *_ = (listed_trial for listed_trial in items if listed_trial["state"] == "paused")
    with site.service.database.write() as db:
        is_done = (trials.c.job == job) & (trials.c.trial == done["id"])
        db.execute(update(trials).where(is_done).values(state="completed"))
    see(page, site, job)

    def opened(trial: dict[str, Any]) -> Locator:
        page.get_by_role("button", name=f"Trial #{int(trial['id'][6:])}", exact=True).click()
        return page.get_by_role("dialog", name=f"Trial #{int(trial['id'][6:])}")

    dialog = opened(done)
    expect(dialog.get_by_role("button", name="Promote")).to_be_disabled()
    expect(dialog.get_by_role("button", name="Stop…")).to_be_disabled()
    dialog.get_by_role("button", name="Close").click()
    dialog = opened(paused)
    page.route("**/promote", lambda route: route.abort())
    dialog.get_by_role("button", name="Promote").click()
    expect(dialog.get_by_role("alert")).to_contain_text("check the trial before you promote it again")
    page.unroute("**/promote")
    dialog.get_by_role("button", name="Promote").click()
    expect(page.get_by_text("runs to its next rung")).to_be_attached()
    dialog.get_by_role("button", name="Stop…").click()
    assert violations(page) == []
    page.get_by_role("button", name="Stop the trial").click()
    expect(page.get_by_text("is being stopped")).to_be_attached()
    with site.service.database.read() as db:
        requests = jobs.trial_requests_of(db, job)
    assert [(type(request), getattr(request, "trial", "")) for request in requests] == [
        (PromoteRequested, paused["id"]),
        (StopRequested, paused["id"]),
    ]


def test_log_of_each_attempt_is_shown_and_updated_live(page: Page, site: Site) -> None:
    job = site.submit(fidelity=FIDELITY, budget={"usd": 0.03})
    site.simulate(job, messages=1500, faults=Faults(crash=0.01), seed=1)
    running = site.get(f"/jobs/{job}/trials", limit=500)["items"]
    trial = next(item for item in running if item["state"] == "running" and item["attempts"] > 1)
    last = trial["attempts"]
    logs = TrialLogs(site.service.settings.storage, site.service.project, job, trial["id"])

    def write(attempt: int, text: str, *, complete: bool = False) -> None:
        logs.write(attempt, Printed(len(text), text.encode(), b"", complete))

    stored = TrialArtifacts(site.service.settings.storage, site.service.project, job, trial["id"])
    files = {"plot.png": PIXEL, "page.html": b"<script>document.title = 'taken over'</script>"}
    stored.add(last, 3, files, at_ns=0, max_files=9, max_bytes=1000)
    write(1, "the first attempt\n", complete=True)
    write(last, "epoch 1\n")
    see(page, site, job)
    page.get_by_role("button", name=f"Trial #{int(trial['id'][6:])}", exact=True).click()
    log = page.get_by_role("region", name="What it printed")
    expect(log).to_have_text("epoch 1\n", use_inner_text=True)
    image = page.get_by_role("img", name="plot.png of step 3")
    expect(image).to_be_visible()
    assert image.evaluate("(node) => node.naturalWidth") == 1
    with page.expect_download() as download:
        page.get_by_role("button", name="Download page.html").click()
    assert download.value.suggested_filename == "page.html"
    assert page.title() != "taken over"
    assert violations(page) == []
    write(last, f"epoch 1\nepoch 2 <b>{'long ' * 200}\n")
    expect(log).to_contain_text("epoch 2 <b>long")
    assert log.evaluate("(node) => node.scrollWidth <= node.clientWidth")
    page.get_by_label("Wrap lines").uncheck()
    assert log.evaluate("(node) => node.scrollWidth > node.clientWidth")
    page.get_by_label("Attempt", exact=True).select_option("1")
    expect(log).to_have_text("the first attempt\n", use_inner_text=True)
    expect(page.get_by_text("Complete.")).to_be_visible()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_text("The log was copied.")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "the first attempt\n"


def test_long_log_says_what_is_missing(page: Page, site: Site) -> None:
    job = site.submit(fidelity=FIDELITY, budget={"usd": 0.03})
    site.simulate(job, messages=30)
    listed = site.get(f"/jobs/{job}/trials", limit=500)["items"]
    trial = next(item for item in listed if item["state"] == "running")
    logs = TrialLogs(site.service.settings.storage, site.service.project, job, trial["id"])
    logs.write(1, Printed(1000, b"the beginning\n", b"the end\n", complete=False))
    see(page, site, job)
    page.get_by_role("button", name=f"Trial #{int(trial['id'][6:])}", exact=True).click()
    log = page.get_by_role("region", name="What it printed")
    expect(log).to_contain_text("the beginning")
    expect(log).to_contain_text("the end")
    expect(page.get_by_text("978 bytes in the middle were not stored.")).to_be_visible()
    expect(page.get_by_text("Only the newest part is shown here")).to_be_hidden()
    line, total = b"x" * 79 + b"\n", 1000
    for number in range(3):
        total += 80 * 5000
        logs.write(1, Printed(total, b"", line * 4999 + b"%80d" % number, complete=False))
        expect(log).to_contain_text(f" {number}")
    expect(page.get_by_text("Only the newest part is shown here")).to_be_visible()
    expect(log).not_to_contain_text("the beginning")


def test_error_in_the_dialog_of_a_trial_is_replaced_by_the_next_answer(page: Page, site: Site) -> None:
    job = site.submit(fidelity=FIDELITY, budget={"usd": 0.03})
    site.simulate(job, messages=300)
    items = site.get(f"/jobs/{job}/trials", limit=500)["items"]
    trial = next(item["id"] for item in items if item["state"] == "paused")
    page.clock.install()
    see(page, site, job)
    name = f"Trial #{int(trial[6:])}"
    page.get_by_role("button", name=name, exact=True).click()
    dialog = page.get_by_role("dialog", name=name)
    expect(dialog.get_by_role("heading", name="Configuration")).to_be_visible()
    page.route(f"**/trials/{trial}", lambda route: route.fulfill(status=503, json={"title": "It is busy"}))
    page.clock.run_for(5000)
    expect(dialog.get_by_text("It is busy")).to_be_visible()
    page.unroute(f"**/trials/{trial}")
    page.clock.run_for(5000)
    expect(dialog.get_by_text("It is busy")).to_be_hidden()
    expect(dialog.get_by_role("heading", name="Configuration")).to_be_visible()

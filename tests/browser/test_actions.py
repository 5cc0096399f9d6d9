"""Actions happen once, and what they cost is confirmed: after a double click, over a connection that breaks after the change, and from a stale tab."""

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, Route, expect

from tests.api.test_exports import CONTENT, DONE, begin, finished, run
from tests.browser.conftest import Site, answer_late, click_twice, section, see, violations
from tests.driver.export_actors import FakeExportActors
from tuner.checkpoints.checkpoints import CheckpointStore
from tuner.service.storage_lifecycle import StorageLifecycle
from tuner.simulator.worker import Overheads

pytestmark = [pytest.mark.browser, pytest.mark.needs("chromium")]


def losing(page: Page, method: str, url: str) -> list[int]:
    """Lose the response of the first such request after the service handled it. Return the status of each response."""
    answered: list[int] = []

    def pass_on(route: Route) -> None:
        if route.request.method != method:
            route.continue_()
            return
        answer = route.fetch()
        answered.append(answer.status)
        if len(answered) == 1:
            route.abort()
        else:
            route.fulfill(response=answer)

    page.route(url, pass_on)
    return answered


def top_up(page: Page, usd: str) -> Locator:
    page.get_by_role("button", name="Top up…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("New budget, in dollars").fill(usd)
    return dialog


def test_double_click_sets_a_budget_once_and_another_tab_shows_it(
    context: BrowserContext, site: Site
) -> None:
    job = site.submit(budget={"usd": 0.001})
    site.simulate(job)
    first, other = context.new_page(), context.new_page()
    for page in (first, other):
        see(page, site, job)
        expect(page.get_by_text("○ The job has ended")).to_be_visible()
    dialog = top_up(first, "0.0001")
    dialog.get_by_role("button", name="Set the budget").click()
    expect(dialog.get_by_role("alert")).to_contain_text("spent")
    sent: list[str] = []
    first.on(
        "request", lambda asked: sent.append(asked.method) if asked.method in ("PATCH", "POST") else None
    )
    dialog.get_by_label("New budget, in dollars").fill("0.008")
    click_twice(first, dialog.get_by_role("button", name="Set the budget"), f"**/v1/jobs/{job}")
    expect(dialog).not_to_be_visible()
    for page in (first, other):
        expect(page.get_by_text("of $0.00800 spent")).to_be_visible()
        expect(page.get_by_text("● Live")).to_be_visible()
    assert site.get(f"/jobs/{job}")["budget"]["usd"] == 0.008
    assert sent == ["PATCH", "POST"]
    expect(first.get_by_role("button", name="Top up…")).to_be_focused()


def test_action_with_lost_response_is_done_once(page: Page, site: Site) -> None:
    job = site.submit(kind="ray_tune")
    see(page, site, job)
    expect(page.get_by_text("a Ray Tune function")).to_be_visible()
    answered = losing(page, "PATCH", f"**/v1/jobs/{job}")
    dialog = top_up(page, "2")
    dialog.get_by_role("button", name="Set the budget").click()
    expect(dialog).not_to_be_visible()
    expect(page.get_by_text("of $2.00 spent")).to_be_visible()
    assert answered == [200]
    answered = losing(page, "POST", f"**/v1/jobs/{job}/pause")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("paused")
    expect(page.get_by_role("alert")).to_have_count(0)
    assert answered == [202]


def test_stale_tab_shows_the_budget_that_another_tab_set(page: Page, site: Site) -> None:
    job = site.submit()
    see(page, site, job)
    dialog = top_up(page, "2")
    site.client.patch(f"/v1/jobs/{job}", json={"budget": {"usd": 5}})
    dialog.get_by_role("button", name="Set the budget").click()
    expect(dialog.get_by_role("alert")).to_contain_text("It is $5.00 now")
    assert violations(page) == []
    assert site.get(f"/jobs/{job}")["budget"]["usd"] == 5
    dialog.get_by_role("button", name="Set the budget anyway").click()
    expect(dialog).not_to_be_visible()
    assert site.get(f"/jobs/{job}")["budget"]["usd"] == 2
    dialog = top_up(page, "3")
    site.client.patch(f"/v1/jobs/{job}", json={"budget": {"usd": 3}})
    dialog.get_by_role("button", name="Set the budget").click()
    expect(dialog).not_to_be_visible()
    expect(page.get_by_text("The budget is $3.00.")).to_be_visible()


def test_top_up_that_cannot_pay_for_the_start_of_the_workers_shows_a_warning(page: Page, site: Site) -> None:
    job = site.submit(budget={"usd": 0.001})
    site.simulate(job, overheads=Overheads(warming_ns=10 * 10**9))
    spent = site.get(f"/jobs/{job}")["spend"]["usd"]
    see(page, site, job)
    dialog = top_up(page, f"{spent + 0.00004:.6f}")
    dialog.get_by_role("button", name="Set the budget").click()
    expect(dialog).not_to_be_visible()
    warning = page.get_by_role("status").filter(has_text="Warnings")
    expect(warning).to_contain_text("the budget has $0.00004 left, but starting a worker")
    assert violations(page) == []
    dialog = top_up(page, "1")
    dialog.get_by_role("button", name="Set the budget").click()
    expect(dialog).not_to_be_visible()
    expect(warning).to_have_count(0)


def test_priority_and_tags_can_be_edited(page: Page, site: Site) -> None:
    job = site.submit(tags={"project": "vision"})
    see(page, site, job)
    page.get_by_role("button", name="Priority and tags…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Tags")).to_have_value("project: vision")
    dialog.get_by_label("Priority").fill("7")
    dialog.get_by_label("Tags").fill("project: speech\nowner: alice")
    click_twice(page, dialog.get_by_role("button", name="Save"), f"**/v1/jobs/{job}")
    expect(dialog).not_to_be_visible()
    shown: dict[str, Any] = site.get(f"/jobs/{job}")
    assert (shown["priority"], shown["tags"]) == (7, {"project": "speech", "owner": "alice"})


def test_actions_work_again_after_the_service_was_down(page: Page, site: Site) -> None:
    job = site.submit()
    see(page, site, job)
    dialog = top_up(page, "2")
    site.stop()
    dialog.get_by_role("button", name="Set the budget").click()
    expect(dialog.get_by_role("alert")).to_contain_text("tuner serve")
    site.start()
    dialog.get_by_role("button", name="Set the budget").click()
    expect(dialog).not_to_be_visible()
    assert site.get(f"/jobs/{job}")["budget"]["usd"] == 2
    heading = page.get_by_role("heading", level=1)
    click_twice(page, page.get_by_role("button", name="Pause"), f"**/v1/jobs/{job}/pause")
    expect(heading).to_contain_text("paused")
    page.get_by_role("button", name="Resume").click()
    expect(heading).not_to_contain_text("paused")
    page.get_by_role("button", name="Cancel…").click()
    assert violations(page) == []
    page.go_back()
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.go_forward()
    page.get_by_role("button", name="Cancel…").click()
    page.get_by_role("button", name="Cancel the job").click()
    expect(heading).to_contain_text("cancelled")
    expect(page.get_by_role("button", name="Pause")).to_be_disabled()


def test_export_is_paid_priced_and_downloaded_and_files_are_deleted(
    page: Page, site: Site, tmp_path: Path
) -> None:
    job = site.submit(budget={"usd": 0.001})
    site.simulate(job)
    site.client.patch(f"/v1/jobs/{job}", json={"budget": {"usd": 0.1}})
    see(page, site, job)
    exports, stored = section(page, "Exports"), section(page, "Stored files")
    expect(stored).to_contain_text("Not measured yet")
    exports.get_by_role("button", name="Export…").click()
    dialog = page.get_by_role("dialog", name="Export the best model")
    dialog.get_by_label("pruned (channels removed)").uncheck()
    dialog.get_by_label("Maximum cost, in dollars").fill("0.01")
    answered = losing(page, "POST", f"**/v1/jobs/{job}/exports")
    dialog.get_by_role("button", name="Export for at most $0.0100").click()
    expect(dialog).not_to_be_visible()
    assert answered == [202]
    expect(exports).to_contain_text("export_00001 ◷ queued")
    expect(exports.get_by_role("button", name="Export…")).to_be_disabled()
    made = site.get(f"/jobs/{job}/exports/export_00001")
    assert (made["max_cost_usd"], "pruned" in made["formats"]) == (0.01, False)

    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx/model.onnx").write_bytes(CONTENT)
    CheckpointStore(site.service.settings.storage, "default", job).publish(made["id"], 1, 1, tmp_path)
    run(site.service, job, made["id"], FakeExportActors(DONE))
    expect(exports).to_contain_text("export_00001 ✓ succeeded")
    expect(exports).to_contain_text("no_calibration")
    prices = exports.get_by_role("region", name="Dollars per million predictions of export_00001")
    expect(prices).to_contain_text("★ int8-dynamic")
    exports.get_by_label("Machine", exact=True).fill("m6i.xlarge")
    exports.get_by_label("Requests a second").fill("2000")
    exports.get_by_role("button", name="Calculate").click()
    query = {"requests_per_second": 2000, "instance_type": "m6i.xlarge"}
    price = site.get(f"/jobs/{job}/exports/{made['id']}", **query)["variants"][0]["serving"][0]
    expect(prices.get_by_role("row").nth(1)).to_contain_text(
        re.compile(f"onnx.?m6i.xlarge.*{price['replicas']}.*–")
    )
    assert violations(page) == []
    with page.expect_download() as download:
        exports.get_by_role("button", name="Download onnx").click()
    assert download.value.path().read_bytes() == CONTENT
    assert download.value.suggested_filename == "onnx-model.onnx"

    site.service.now.pass_s(3600)
    StorageLifecycle(site.service).one_pass()
    page.reload()
    expect(stored).to_contain_text("the files of all trials")
    stored.get_by_role("button", name="Delete files…").click()
    dialog = page.get_by_role("dialog", name="Delete the files of this job?")
    dialog.get_by_label("Keep").select_option("best")
    assert violations(page) == []
    dialog.get_by_role("button", name="Delete the files").click()
    expect(dialog).not_to_be_visible()
    audit = site.get("/audit", target=job)["items"]
    assert [entry["after"]["retain"] for entry in audit if entry["action"] == "artifacts.delete"] == ["best"]
    page.evaluate("document.documentElement.dataset.role = 'viewer'")
    expect(stored.get_by_role("button", name="Delete files…")).to_be_hidden()
    expect(exports.get_by_role("button", name="Export…")).to_be_hidden()
    page.goto(f"{site.url}#/spend")
    expect(section(page, "Stored files")).to_contain_text("the files of all trials")


def test_list_of_exports_is_updated_although_answers_are_slow(page: Page, site: Site) -> None:
    job = finished(site.service, site.client, budget={"usd": 0.001})
    begin(site.client, job, formats=["onnx"], max_cost_usd=0.01)
    page.clock.install()
    see(page, site, job)
    exports = section(page, "Exports")
    expect(exports).to_contain_text("export_00001 ◷ queued")
    # The job itself is not loaded again, because its exports would be, too.
    page.route(f"**/v1/jobs/{job}", lambda route: route.fulfill(status=503, json={}))
    answer_late(page, f"**/v1/jobs/{job}/exports", "running", polls_ms=3000, waits_ms=9000)
    expect(exports).to_contain_text("export_00001 ▶ running")


def test_bill_of_an_ended_job_shows_a_later_export(page: Page, site: Site) -> None:
    job = finished(site.service, site.client, budget={"usd": 0.001})
    export = begin(site.client, job, formats=["onnx"], max_cost_usd=0.01)["id"]
    page.clock.install()
    see(page, site, job)
    bill = section(page, "The bill")
    expect(bill).to_contain_text("export $0 ")
    expect(page.get_by_text("○ The job has ended")).to_be_visible()
    page.clock.run_for(20_000)  # The events of the job load its bill once more.
    run(site.service, job, export, FakeExportActors(DONE))
    cost = site.get(f"/jobs/{job}/bill")["by_kind"]["export"]
    page.clock.run_for(30_000)
    expect(bill).to_contain_text(f"export ${cost:.6f} ")
    expect(bill).to_contain_text(f"Exports${cost:.6f}")

"""The page's main tasks: submit, watch, ask for an answer, with errors and lost connections."""

import math
import re
from typing import Any, Literal

import pytest
from playwright.sync_api import BrowserContext, Page, Response, Route, expect

from tests import fakes
from tests.browser.conftest import (
    FIDELITY,
    Finished,
    Site,
    answer_late,
    click_twice,
    expect_all_reports,
    section,
    see,
    violations,
)
from tests.fakes import KEY
from tuner.schemas.job import JobRequest
from tuner.service.cluster import DashboardAccess
from tuner.web import address

pytestmark = [pytest.mark.browser, pytest.mark.needs("chromium")]
BYTES_MAX = 500_000
#: Color scheme, width, and the rules of axe that are applied: all of them if none is named.
SCREENS: tuple[tuple[Literal["light", "dark"], int, tuple[str, ...]], ...] = (
    ("light", 360, ()),
    ("dark", 1280, ("color-contrast",)),
)


def rows(page: Page) -> dict[str, tuple[str, str]]:
    """Return state and steps of each trial from the table of trials."""
    body = page.get_by_role("region", name="Table of trials").locator("tbody tr")
    texts, states = body.all_inner_texts(), body.evaluate_all("(rows) => rows.map((row) => row.className)")
    cells = [text.split("\t") for text in texts]
    return {row[0].split("#")[-1].strip(): (state, row[4]) for row, state in zip(cells, states, strict=True)}


def test_form_submits_each_job_once(page: Page, site: Site) -> None:
    before = len(site.get("/jobs", limit=500)["items"])
    page.goto(f"{site.url}#/new")
    plan = section(page, "Plan")
    expect(plan.get_by_role("region", name="Rungs")).to_be_visible()
    expect(plan).to_contain_text("Cost")
    page.get_by_label("Budget, in dollars").fill("0.002")
    page.get_by_label("Name").fill("mine")
    expect(page.get_by_label("The whole job")).to_have_value(re.compile(r"name: mine[\s\S]*usd: 0.002"))
    click_twice(page, page.get_by_role("button", name="Submit"), "**/v1/jobs")
    expect(page.get_by_role("heading", level=1)).to_contain_text("mine")
    job = site.get(f"/jobs/{page.url.rpartition('/')[2]}")
    assert (job["name"], job["budget"]["usd"]) == ("mine", 0.002)
    assert len(site.get("/jobs", limit=500)["items"]) == before + 1

    lost: list[Any] = []

    def lose(route: Route) -> None:
        lost.append(route.fetch())
        route.abort()

    page.goto(f"{site.url}#/new")
    page.route("**/v1/jobs", lose)
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("alert")).to_contain_text("does not answer")
    assert len(lost) == 1
    assert len(site.get("/jobs", limit=500)["items"]) == before + 2
    page.unroute("**/v1/jobs")
    page.reload()
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("digits")
    assert len(site.get("/jobs", limit=500)["items"]) == before + 2


def test_form_submits_a_job_file_without_its_planning_section(page: Page, site: Site) -> None:
    page.goto(f"{site.url}#/new")
    source = page.get_by_label("The whole job")
    expect(section(page, "Plan").get_by_role("region", name="Rungs")).to_be_visible()
    source.fill(f"{source.input_value()}\nplanning: {{step_seconds: 0.5}}\n")
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("digits")


def test_form_shows_each_error_at_its_field_or_line(page: Page, site: Site) -> None:
    before = site.get("/jobs", limit=500)["items"]
    page.goto(f"{site.url}#/new")
    source = page.get_by_label("The whole job")
    plan = section(page, "Plan")
    source.fill("name: [x")
    expect(plan).to_contain_text("The job cannot be read")
    source.fill("name: x\ntrainable: trainables.digits_mlp:train")
    expect(plan).to_contain_text("/objective")
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("alert")).to_contain_text("/search_space")
    assert site.get("/jobs", limit=500)["items"] == before
    source.fill(
        text := "name: x\ntrainable: trainables.digits_mlp:train\nobjective: {metric: acc, mode: max}\n"
        "search_space:\n  lr: {type: float, low: 3, high: 1}\nbudget: {usd: -1}\n"
    )
    expect(page.get_by_label("Budget, in dollars")).to_have_attribute("aria-invalid", "true")
    assert violations(page) == []
    plan.get_by_role("button", name="Line 5").first.click()
    expect(source).to_be_focused()
    selected = source.evaluate("(area) => area.value.slice(area.selectionStart, area.selectionEnd)")
    assert selected in ("lr", "low", "high")
    source.fill(text.replace("usd: -1", "usd: 1").replace("low: 3", "low: 0.1"))
    expect(page.get_by_label("Budget, in dollars")).not_to_have_attribute("aria-invalid", "true")


def test_skip_link_keeps_the_page_and_what_was_typed(page: Page, site: Site) -> None:
    page.goto(f"{site.url}#/new")
    source = page.get_by_label("The whole job")
    source.fill("name: mine")
    page.get_by_role("link", name="Skip to the content").press("Enter")
    expect(page.locator("#main")).to_be_focused()
    expect(page).to_have_url(f"{site.url}#/new")
    expect(source).to_have_value("name: mine")


def test_command_is_shown_where_a_trainable_is(page: Page, site: Site, finished: Finished) -> None:
    page.goto(f"{site.url}#/new")
    source, chosen = page.get_by_label("The whole job"), page.get_by_label("Trainable")
    expect(chosen).to_have_value("trainables.digits_mlp:train")
    text = "name: x\ncommand: python train.py {lr}\nobjective: {metric: acc, mode: max}\nbudget: {usd: 1}\n"
    source.fill(text + "search_space:\n  lr: {type: float, low: 0.1, high: 1}\n")
    expect(chosen).to_have_value("python train.py {lr}")
    expect(section(page, "Plan")).to_contain_text("TUNER_PACKAGES=on")
    expect(chosen).to_have_attribute("aria-invalid", "true")
    chosen.select_option("trainables.digits_mlp:train")
    expect(source).to_have_value(re.compile("trainable: trainables.digits_mlp:train"))
    expect(source).not_to_have_value(re.compile("command:"))

    def with_command(route: Route) -> None:
        route.fulfill(json={**route.fetch().json(), "command": "python train.py {lr}"})

    page.route(f"**/v1/jobs/{finished.job}", with_command)
    see(page, finished, finished.job)
    expect(page.get_by_text("python train.py {lr}")).to_be_visible()


def test_pages_of_a_service_without_jobs_are_shown(page: Page, empty_site: Site) -> None:
    page.goto(empty_site.url)
    expect(page.get_by_text("No job yet")).to_be_visible()
    page.goto(f"{empty_site.url}#/spend")
    expect(page.get_by_text("Nothing was spent in this time.")).to_be_visible()
    expect(section(page, "Machines that no job used")).to_have_count(0)
    # The form starts with the trainable that the service can tune.
    own = {"trainable": "own.work:fit", "error": None, "objective": {"metric": "mae", "mode": "min"}}
    space = {"depth": {"type": "int", "low": 1, "high": 9}}
    page.route(
        "**/v1/trainables", lambda route: route.fulfill(json={"items": [{**own, "search_space": space}]})
    )
    page.goto(f"{empty_site.url}#/new")
    expect(page.get_by_label("Name")).to_have_value("work")
    source = page.get_by_label("The whole job")
    expect(source).to_have_value(re.compile("trainable: own.work:fit"))
    expect(source).to_have_value(re.compile("metric: mae"))
    expect(source).to_have_value(re.compile("depth:"))
    # The newest job is copied with both of its objectives.
    both = [{"metric": "mae", "mode": "min", "target": None}, {"metric": "ms", "mode": "min", "target": None}]
    newest = {"name": "mine", "trainable": "own.work:fit", "objective": both[0], "objectives": both}
    page.route(re.compile("jobs.limit=1$"), lambda route: route.fulfill(json={"items": [newest]}))
    page.reload()
    expect(source).to_have_value(re.compile(r"objectives:\n +- \{?metric: mae, mode: min\}?\n.*ms"))


def test_new_job_copies_every_part_of_the_newest_job(page: Page, empty_site: Site) -> None:
    trainable = "trainables.digits_cnn:train"
    space = {
        "width": {"type": "int", "low": 8, "high": 64},
        "loss": {"type": "categorical", "choices": [None, "l2"]},
    }
    earlier = empty_site.submit(trainable=trainable, search_space=space)
    fakes.simulate(empty_site.service, earlier)
    newest = empty_site.submit(
        trainable=trainable,
        objective={"metric": "acc", "mode": "max", "target": 0.9},
        search_space=space,
        constants={"data": None, "sizes": [1, 2]},
        resources={"market": "spot_with_fallback", "cpus": 1, "max_concurrent_trials": 2},
        algorithm={"seed": 7},
        stop={"trial": {"patience": 5}, "worth": {"usd_per_point": 40}},
        confirm={"candidates": 2},
        start=[{"width": 8, "loss": None}],
        constraints=[{"metric": "ms", "max": 20}],
        checkpoint={"keep": 3},
        artifacts={"retain": "best"},
        warm_start={"jobs": [earlier]},
        teacher={"job": earlier},
        window={"start": "22:00", "end": "06:00"},
        priority=3,
        tags={"owner": "ann"},
    )
    known = {"trainable": trainable, "error": None, "objective": None, "search_space": None}
    page.route("**/v1/trainables", lambda route: route.fulfill(json={"items": [known]}))
    page.goto(f"{empty_site.url}#/new")
    expect(page.get_by_label("The whole job")).to_have_value(re.compile("trainables.digits_cnn"))
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_text("The job was submitted.")).to_be_visible()
    listed = empty_site.get("/jobs", limit=9)["items"]
    (copy,) = [job for job in listed if job["id"] not in (earlier, newest)]
    before = empty_site.get(f"/jobs/{newest}")
    names = JobRequest.model_fields.keys() & before.keys()
    assert {name: copy[name] for name in names} == {name: before[name] for name in names}


def test_few_bad_curves_do_not_set_the_scale_of_the_chart(page: Page, finished: Finished) -> None:
    page.goto(finished.url)
    ask = """async ([mode, ys]) => (await import("/static/chart.js")).valueRange(
        [ys], ys.length, mode).off"""
    race = [0.5 + place / 100 for place in range(30)]
    for mode, best, worst in (("min", 0.5, 9.0), ("max", 0.79, -9.0)):
        shown = page.evaluate(ask, [mode, [*race, None, worst]])
        assert shown["low"] >= 0.5
        assert shown["high"] < 0.8
        assert best in (shown["low"], shown["high"])
        assert page.evaluate(ask, [mode, race]) is None
        assert page.evaluate(ask, [mode, []]) is None


def test_address_of_a_job_shows_the_job_live(page: Page, site: Site) -> None:
    job = site.submit(fidelity=FIDELITY, budget={"usd": 0.002})
    page.goto(address(site.url.rstrip("/"), KEY, job))
    expect(page.get_by_role("heading", name="Learning curves")).to_be_visible()
    expect(page).to_have_url(f"{site.url}#/jobs/{job}")
    expect(page.get_by_text("● Live")).to_be_visible()
    run = site.simulate(job, messages=120)
    expect_all_reports(page, site, job)
    run.run(turns_max=100_000)
    expect(page.get_by_text("○ The job has ended")).to_be_visible()
    expect_all_reports(page, site, job)
    expect(page.get_by_role("heading", level=1)).to_contain_text("succeeded (budget usd)")
    while (more := page.get_by_role("button", name="Show more")).is_visible():
        more.click()
    listed = site.get(f"/jobs/{job}/trials", limit=500)["items"]
    assert rows(page) == {
        str(int(trial["id"][6:])): (trial["state"], str(trial["steps"])) for trial in listed
    }
    expect(section(page, "The bill")).to_contain_text("train $0.00")


def test_page_of_a_waiting_job_follows_the_queue_and_the_start(page: Page, empty_site: Site) -> None:
    service = empty_site.service
    service.cluster.door = DashboardAccess("http://127.0.0.1:9", "token")
    first, job = empty_site.submit(priority=1), empty_site.submit()
    see(page, empty_site, job)
    meter, link = section(page, "The meter"), page.get_by_role("link", name="Ray dashboard")
    expect(meter).to_contain_text("position 2 in the queue")
    expect(link).to_have_attribute("href", "/ray/#/jobs")
    fakes.begin(service, first)
    expect(meter).to_contain_text("position 1 in the queue")
    fakes.begin(service, job)
    expect(meter).to_contain_text("No money has been spent yet")
    expect(link).to_have_attribute("href", f"/ray/#/jobs/{job}-1")


def test_lost_connection_recovers_without_missing_events(page: Page, site: Site) -> None:
    job = site.submit(fidelity=FIDELITY, budget={"usd": 0.002})
    run = site.simulate(job, messages=120)
    see(page, site, job)
    expect_all_reports(page, site, job)
    before = site.get(f"/jobs/{job}")["progress"]["steps"]
    asked: list[str | None] = []
    page.on(
        "request",
        lambda request: (
            asked.append(request.header_value("last-event-id")) if request.url.endswith("/events") else None
        ),
    )
    site.stop()
    expect(page.get_by_text("The connection is lost")).to_be_visible()
    for _ in range(100):
        run.clock.run_next()
    site.start()
    expect(page.get_by_text("● Live")).to_be_visible()
    expect_all_reports(page, site, job)
    assert site.get(f"/jobs/{job}")["progress"]["steps"] > before
    assert None not in asked


HIDE = """(hidden) => {
    Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_hidden_tab_closes_its_event_stream_and_misses_nothing(page: Page, site: Site) -> None:
    job = site.submit(fidelity=FIDELITY, budget={"usd": 0.002})
    run = site.simulate(job, messages=120)
    see(page, site, job)
    expect_all_reports(page, site, job)
    expect(page.get_by_text("● Live")).to_be_visible()
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/events")):
        page.evaluate(HIDE, True)
    expect(page.get_by_text("Connecting…")).to_be_visible()
    before = site.get(f"/jobs/{job}")["progress"]["steps"]
    for _ in range(100):
        run.clock.run_next()
    with page.expect_request("**/events") as asked:
        page.evaluate(HIDE, False)
    assert int(asked.value.headers["last-event-id"]) > 0
    expect(page.get_by_text("● Live")).to_be_visible()
    expect_all_reports(page, site, job)
    assert site.get(f"/jobs/{job}")["progress"]["steps"] > before


def test_temporary_refusal_of_the_event_stream_is_retried(page: Page, site: Site) -> None:
    job, statuses = site.submit(), [429, 408]
    page.route(
        "**/events",
        lambda route: route.fulfill(status=statuses.pop(0), json={}) if statuses else route.continue_(),
    )
    see(page, site, job)
    expect(page.get_by_text("● Live")).to_be_visible()
    assert statuses == []
    page.route("**/events", lambda route: route.fulfill(status=403, json={}))
    page.reload()
    expect(page.get_by_text("The service refuses further requests")).to_be_visible()


def test_page_shows_the_same_best_trial_for_an_amount_as_rest(page: Page, finished: Finished) -> None:
    job = finished.job
    see(page, finished, job)
    part = section(page, "What can I get for my money?")
    front = finished.get(f"/jobs/{job}/pareto")["items"]
    assert len(front) > 3
    exact = part.get_by_label("Dollars, exactly")
    for point in (front[0], front[len(front) // 2], front[-1]):
        exact.fill(f"{point['cost_usd']:.6f}")
        best = finished.get(f"/jobs/{job}/best", max_cost_usd=point["cost_usd"])
        expect(part).to_contain_text(f"Trial #{int(best['trial'][6:])} at step {best['step']},")
    exact.fill("0.000001")
    expect(part.locator(".problem")).to_contain_text("$")
    slider = part.get_by_label("I can spend")
    slider.focus()
    slider.press("End")
    last = front[-1]
    expect(part).to_contain_text(f"Trial #{int(last['trial'][6:])} at step {last['step']},")


def test_amount_follows_the_best_configuration_until_the_user_chooses_one(
    context: BrowserContext, site: Site
) -> None:
    job = site.submit(fidelity=FIDELITY, budget={"usd": 0.004})
    run = site.simulate(job, messages=150)

    def front() -> list[dict[str, Any]]:
        return list(site.get(f"/jobs/{job}/pareto")["items"])

    def amount() -> str:
        """Return the amount that pays for the whole front, as the field shows it."""
        return f"{math.floor(front()[-1]['cost_usd'] * 1.1 * 1e6) / 1e6:.6f}".rstrip("0")

    first = amount()
    parts = []
    for _ in range(2):
        page = context.new_page()
        see(page, site, job)
        parts.append(section(page, "What can I get for my money?"))
        expect(parts[-1].get_by_label("Dollars, exactly")).to_have_value(first)
    follows, keeps = parts
    keeps.get_by_label("Dollars, exactly").fill("0.000123")
    run.run(turns_max=100_000)
    assert amount() != first
    for part in parts:
        expect(part.locator("tbody tr")).to_have_count(len(front()))
    expect(follows.get_by_label("Dollars, exactly")).to_have_value(amount())
    expect(keeps.get_by_label("Dollars, exactly")).to_have_value("0.000123")


def test_integers_of_a_configuration_are_shown_exactly(page: Page, finished: Finished) -> None:
    page.goto(finished.url)
    ask = """async (values) => [...(await import("/static/answer.js")).config(values).querySelectorAll("dd")]
        .map((node) => node.textContent)"""
    values = {"seed": 123456789, "width": 64, "lr": 0.0123456, "offset": -1234567, "mode": "fast"}
    assert page.evaluate(ask, values) == ["123456789", "64", "0.01235", "-1234567", "fast"]


def test_page_draws_both_metrics_of_two_objectives(page: Page, finished: Finished) -> None:
    job = finished.job

    def changed(route: Route) -> None:
        response = route.fetch()
        answer = response.json()
        if "objective" in answer:
            answer["objectives"] = [answer["objective"], {"metric": "latency_ms", "mode": "min"}]
        else:
            answer["second_metric"] = "latency_ms"
            for number, point in enumerate(answer["items"]):
                point["metrics"]["latency_ms"] = 100 + number
        route.fulfill(response=response, json=answer)

    page.route(re.compile(f"/v1/jobs/{job}(/pareto)?$"), changed)
    see(page, finished, job)
    part = section(page, "What can I get for my money?")
    expect(
        part.get_by_role("img", name="Both metrics of the Pareto front.").locator("canvas")
    ).to_be_visible()
    part.get_by_text("The Pareto front as a table").click()
    table = part.get_by_role("table")
    expect(table.get_by_role("columnheader", name="latency_ms")).to_be_visible()
    expect(table.locator("tbody tr").first).to_contain_text("100")


def test_page_asks_for_a_missing_or_refused_key(page: Page, finished: Finished) -> None:
    page.add_init_script(
        "if (location.protocol === 'http:' && !sessionStorage.getItem('was')) localStorage.setItem('tuner.key', '')"
    )
    page.goto(finished.url)
    page.evaluate("sessionStorage.setItem('was', '1')")
    page.get_by_label("API key").fill("wrong")
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_role("alert")).to_contain_text("refused the key")
    assert violations(page) == []
    page.get_by_label("API key").fill(KEY)
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_role("link", name="digits")).to_be_visible()
    page.get_by_role("button", name="Change key").click()
    page.goto(f"{finished.url}#key={KEY}")
    expect(page.get_by_role("link", name="digits")).to_be_visible()
    assert KEY not in page.url
    page.get_by_role("link", name="digits").click()
    page.get_by_role("button", name="Priority and tags…").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    # Match only the dialog's request. The page's own requests in the meantime would close the dialog.
    old = {"authorization": "Bearer old"}
    page.route(
        f"**/v1/jobs/{finished.job}",
        lambda route: route.continue_(
            headers=route.request.headers | (old if route.request.method == "PATCH" else {})
        ),
    )
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_label("API key").fill(KEY)
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_role("button", name="Priority and tags…")).to_be_visible()


def test_spend_is_grouped_and_downloaded_and_idle_machines_are_separate(
    page: Page, finished: Finished
) -> None:
    page.goto(f"{finished.url}#/spend")
    table = page.get_by_role("region", name="Spend by project")
    expect(table).to_contain_text("vision")
    machines = section(page, "Machines that no job used")
    expect(machines.get_by_role("heading")).to_have_text("Machines that no job used: $0.0600")
    expect(machines).to_contain_text("Not observed for 2.0 h")
    expect(machines.get_by_role("table")).to_contain_text("tiny")
    page.get_by_label("By", exact=True).select_option("market")
    expect(page.get_by_role("region", name="Spend by market")).to_contain_text("on_demand")
    page.get_by_role("button", name="Last month").click()
    expect(page.get_by_text("Nothing was spent in this time.")).to_be_visible()
    expect(machines).to_contain_text("unknown")
    page.get_by_role("button", name="All time").click()
    page.get_by_label("and by").select_option("tag:project")
    expect(page.get_by_role("region", name="Spend by market and project")).to_contain_text("vision")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download as CSV").click()
    assert download.value.path().read_text().startswith("market,tag:project")


def test_jobs_are_filtered_by_state_and_tag(page: Page, finished: Finished) -> None:
    page.goto(f"{finished.url}#/jobs/job_0000000000000000")
    expect(page.get_by_role("alert")).to_contain_text("job_0000000000000000")
    page.get_by_role("link", name="All jobs").click()
    expect(page.get_by_role("link", name="digits")).to_be_visible()
    page.get_by_label("State").select_option("running")
    expect(page.get_by_text("No job matches these filters.")).to_be_visible()
    page.get_by_label("State").select_option("succeeded")
    page.get_by_label("Tag").fill("project:vision")
    page.get_by_label("Tag").press("Enter")
    expect(page.get_by_role("link", name="digits")).to_be_visible()
    page.get_by_label("Tag").fill("vision")
    page.get_by_label("Tag").press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("key:value")
    assert violations(page) == []


def test_list_of_jobs_is_updated_although_answers_are_slow(page: Page, finished: Finished) -> None:
    page.clock.install()
    page.goto(finished.url)
    expect(page.get_by_role("link", name="digits")).to_be_visible()
    answer_late(page, "**/v1/jobs?*", "paused", polls_ms=2000, waits_ms=10_000)
    expect(page.get_by_role("region", name="Jobs, newest first")).to_contain_text("‖ paused")


def test_pages_are_accessible_fit_the_screen_and_are_small(page: Page, finished: Finished) -> None:
    """Check each page in light colors on a narrow screen, then in dark colors on a wide one.

    The other tests apply all of axe's rules on a wide screen in light colors. Dark colors affect its rule for contrast only.
    """
    files: list[Response] = []
    page.on("response", lambda response: None if "/v1/" in response.url else files.append(response))

    def check(what: str) -> None:
        for scheme, width, axe_rules in SCREENS:
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 800})
            assert violations(page, *axe_rules) == [], (what, scheme)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (what, scheme)

    job = finished.job
    for path, sign in (
        ("", "succeeded"),
        ("new", "Nothing has run"),
        ("spend", "Not observed for"),
        (f"jobs/{job}", "of training"),
    ):
        page.goto(f"{finished.url}#/{path}")
        expect(page.get_by_role("main")).to_contain_text(sign)
        check(path)
    assert 50_000 < sum(len(file.body()) for file in files) <= BYTES_MAX
    dialog = page.get_by_role("dialog")
    for opener, sign in (
        ("Top up…", "Set the budget"),
        ("Priority and tags…", "Save"),
        ("Trial #0", "printed nothing"),
    ):
        page.get_by_role("button", name=opener, exact=True).click()
        expect(dialog).to_contain_text(sign)
        check(opener)
        page.keyboard.press("Escape")
        expect(page.get_by_role("button", name=opener, exact=True)).to_be_focused()
    page.get_by_role("button", name="Change key").click()
    check("Change key")

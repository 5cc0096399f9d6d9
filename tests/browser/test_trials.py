"""The table of trials, other metrics, failed jobs, and the display while something loads."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, expect
from sqlalchemy import select, update

from tests.browser.conftest import FIDELITY, Finished, Site, section, see, violations
from tests.fakes import Curves
from tuner.database.tables import attempts, reports
from tuner.domain.space import Config

pytestmark = [pytest.mark.browser, pytest.mark.needs("chromium")]
SPACE = {
    "lr": {"type": "float", "low": 0.0001, "high": 1.0, "log": True},
    "width": {"type": "int", "low": 8, "high": 64},
    "optimizer": {"type": "categorical", "choices": ["sgd", "adamw"]},
    "momentum": {"type": "float", "low": 0.0, "high": 0.9, "when": {"optimizer": ["sgd"]}},
}
TRACEBACK = """Traceback (most recent call last):
  File "/home/ana/tuner/tuner/worker/child.py", line 128, in train
    session.take_output(target(dict(channel.begin.config)))
  File "/home/ana/digits.py", line 14, in train
    data = load(config["path"])
           ^^^^^^^^^^^^^^^^^^^^
  File "/usr/lib/python3.11/site-packages/numpy/lib/npyio.py", line 405, in load
    fid = open(file)
FileNotFoundError: [Errno 2] No such file or directory: 'data/train.npy'
A note.
"""


class NeverReports(Curves):
    def value(self, config: Config, step: int) -> float:
        return float("nan")


def listed(page: Page) -> list[str]:
    """Return the numbers of the trials in the order of the table."""
    heads = page.get_by_role("region", name="Table of trials").locator("tbody th")
    return [text.split("#")[-1] for text in heads.all_inner_texts()]


def test_trials_are_sorted_and_filtered_while_reports_arrive(page: Page, site: Site) -> None:
    job = site.submit(search_space=SPACE, fidelity=FIDELITY, budget={"usd": 0.004})
    run = site.simulate(job, messages=150)
    see(page, site, job)

    def expected(key: Callable[[dict[str, Any]], float], *, falls: bool) -> list[str]:
        """Return the expected order from REST for `width>=20 optimizer:adam`, with ties by trial number."""
        items = site.get(f"/jobs/{job}/trials", limit=500)["items"]
        kept = [
            trial
            for trial in items
            if trial["config"]["width"] >= 20 and trial["config"]["optimizer"] == "adamw"
        ]
        kept.sort(key=lambda trial: (-key(trial) if falls else key(trial), trial["id"]))
        return [str(int(trial["id"][6:])) for trial in kept[:25]]

    def width(trial: dict[str, Any]) -> float:
        return float(trial["config"]["width"])

    table = page.get_by_role("region", name="Table of trials")
    head = table.get_by_role("columnheader", name="width")
    expect(table.get_by_role("columnheader", name="Best")).to_have_attribute("aria-sort", "descending")
    field = page.get_by_label("Filter")
    field.fill("width>=20 optimizer:adam")
    expect(page.get_by_text(" of ").filter(has_text="trials").last).to_be_visible()
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    # Announcements are only for screen readers.
    announced = page.get_by_text("Trials by width, ascending.", exact=True)
    expect(announced).to_have_css("clip-path", "inset(50%)")
    assert listed(page) == expected(width, falls=False)
    assert 1 < len(listed(page)) < site.get(f"/jobs/{job}")["progress"]["trials"]["paused"]
    head.get_by_role("button").press("Enter")
    expect(head).to_have_attribute("aria-sort", "descending")
    assert listed(page) == expected(width, falls=True)
    assert violations(page) == []
    before = listed(page)
    expect(page.get_by_label("Metric", exact=True)).to_be_hidden()  # there is only one
    run.run(turns_max=100_000)
    expect(page.get_by_text("○ The job has ended")).to_be_visible()
    assert listed(page) == expected(width, falls=True)
    assert len(listed(page)) > len(before)
    expect(section(page, "Best")).to_be_visible()
    expect(table.get_by_text("paused")).to_have_count(0)
    expect(table.get_by_text("not continued").first).to_be_visible()

    page.reload()
    expect(head).to_have_attribute("aria-sort", "descending")
    expect(field).to_have_value("width>=20 optimizer:adam")
    assert listed(page) == expected(width, falls=True)
    field.fill("widht>20")
    expect(page.get_by_text("widht is not a column")).to_be_visible()
    expect(field).to_have_attribute("aria-invalid", "true")
    assert listed(page) == expected(width, falls=True), "a filter that cannot be read changes nothing"
    assert violations(page) == []
    field.fill("state:completed")
    expect(field).not_to_have_attribute("aria-invalid", "true")
    states = [trial["state"] for trial in site.get(f"/jobs/{job}/trials", limit=500)["items"]]
    expect(table.locator("tbody tr")).to_have_count(states.count("completed"))
    field.fill("")
    expect(page).to_have_url(f"{site.url}#/jobs/{job}?sort=-config.width")


def test_any_reported_metric_can_be_charted(page: Page, site: Site) -> None:
    job = site.submit(fidelity=FIDELITY, budget={"usd": 0.002})
    site.simulate(job)
    with site.service.database.write() as db:
        for row in db.execute(select(reports).where(reports.c.job == job)).all():
            more = json.dumps({**json.loads(row.metrics), "train_loss": 7 / row.step})
            place = (reports.c.job == job) & (reports.c.trial == row.trial) & (reports.c.step == row.step)
            db.execute(update(reports).where(place).values(metrics=more))
    see(page, site, job)
    picker = page.get_by_label("Metric", exact=True)
    expect(picker).to_have_value("acc")
    asked: list[Route] = []
    page.route("**/curves?metric=*", lambda route: asked.append(route))
    with page.expect_request("**/curves?metric=*"):
        picker.select_option("train_loss")
    chart = page.get_by_role("group", name="train_loss")
    expect(section(page, "Learning curves").get_by_text("Loading…")).to_be_visible()
    chart.press("ArrowDown")  # The picked trial stays picked when its curve arrives.
    asked[0].continue_()
    best = site.get(f"/jobs/{job}")["best"]
    steps = site.get(f"/jobs/{job}/trials/{best['trial']}")["steps"]
    expect(page.get_by_text(f"train_loss {float(f'{7 / steps:.4g}'):g} at step {steps}")).to_be_visible()
    page.route("**/curves?metric=*", lambda route: route.fulfill(status=503, json={"title": "It is busy"}))
    picker.select_option("acc")
    picker.select_option("train_loss")
    expect(page.get_by_role("alert")).to_contain_text("It is busy")
    assert violations(page) == []


def test_failed_job_page_shows_reason_traceback_and_advice(page: Page, site: Site) -> None:
    job = site.submit(search_space=SPACE)
    site.simulate(job, training=NeverReports())
    with site.service.database.write() as db:
        db.execute(update(attempts).where(attempts.c.job == job).values(detail=TRACEBACK))
    see(page, site, job)
    part = section(page, "Why it failed")
    expect(part).to_contain_text("trials failed in the same way: reported acc = nan at step 1")
    where = part.get_by_role("region", name="Where it failed")
    expect(where).to_contain_text('File "/home/ana/digits.py", line 14, in train')
    expect(where).to_contain_text("A note.")
    expect(where).not_to_contain_text("npyio")
    expect(where).not_to_contain_text("take_output")
    part.get_by_text("The whole traceback").click()
    expect(part.get_by_role("region", name="The whole traceback")).to_contain_text("npyio")
    expect(part.get_by_role("heading", name="Advice")).to_be_visible()
    expect(part.get_by_text("Loading")).to_have_count(0)
    expect(page.get_by_role("heading", name="Learning curves")).to_be_hidden()
    assert violations(page) == []
    part.get_by_role("button", name="Trial #0").click()
    expect(page.get_by_role("dialog", name="Trial #0")).to_be_visible()


def test_page_shows_what_is_loading_and_why_loading_failed(page: Page, finished: Finished) -> None:
    job, waiting = finished.job, list[Route]()

    def hold(route: Route) -> None:
        waiting.append(route)

    def is_loading(place: Locator) -> None:
        expect(place.locator(".loading").first).to_be_visible()
        expect(place.get_by_role("status").first).to_be_attached()

    main = page.get_by_role("main")
    for path, call, place in (
        ("", "**/v1/jobs?*", main),
        (f"jobs/{job}", f"**/v1/jobs/{job}", main),
        (f"jobs/{job}", "**/pareto", section(page, "What can I get for my money?")),
        (f"jobs/{job}", "**/report", section(page, "Best against dollars")),
        (f"jobs/{job}", "**/bill", section(page, "The bill")),
        ("spend", "**/v1/spend?*", main),
        ("new", "**/v1/trainables", main),
        ("new", "**/v1/plans", section(page, "Plan")),
    ):
        page.goto("about:blank")
        page.route(call, hold)
        page.goto(f"{finished.url}#/{path}")
        is_loading(place)
        while not waiting:
            page.wait_for_timeout(20)
        for route in waiting:
            route.fulfill(status=503, json={"title": "It is busy", "detail": "Try again."})
        waiting.clear()
        page.unroute(call)
        expect(place.get_by_text("It is busy")).to_be_visible()
    page.goto("about:blank")
    page.route("**/v1/trainables", hold)
    page.goto(f"{finished.url}#/new")
    is_loading(main)
    expect(page.get_by_label("Trainable")).to_have_value("trainables.digits_mlp:train")
    waiting[0].fulfill(status=503, json={"title": "It is busy"})
    page.unroute("**/v1/trainables")
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_label("Trainable").get_by_role("option")).to_have_text(
        [
            *(
                f"trainables.{name}:train"
                for name in ("char_lm", "digits_cnn", "digits_mlp", "digits_packed")
            ),
            "Other…",
        ]
    )
    # A trainable without a literal search space in its source is imported when selected. Any other trainable may be typed in.
    computed = {"trainable": "own.work:fit", "error": None, "search_space": None, "objective": None}
    space = {"depth": {"type": "int", "low": 1, "high": 9}}
    page.route("**/v1/trainables", lambda route: route.fulfill(json={"items": [computed], "truncated": True}))
    page.route("**/v1/trainables/*", lambda route: route.fulfill(json={**computed, "search_space": space}))
    page.reload()
    source = page.get_by_label("The whole job")
    expect(page.get_by_text("Not all files were read")).to_be_visible()
    page.get_by_label("Trainable").select_option("Other…")
    page.get_by_label("As module:function").fill("mine:train")
    expect(source).to_have_value(re.compile("trainable: mine:train"))
    assert violations(page) == []
    page.get_by_label("Trainable").select_option("own.work:fit")
    expect(source).to_have_value(re.compile("depth:"))


def test_filter_language_and_charted_metrics_in_the_browser_modules(page: Page, finished: Finished) -> None:
    page.goto(finished.url)
    ask = """async ([space, trials, text]) => {
        const { columnsOf, parse } = await import("/static/filter.js");
        const job = { objective: { metric: "acc", mode: "max" }, search_space: space };
        const { match, error } = parse(text, columnsOf(job, () => false), "acc");
        return error ?? trials.filter(match).map((trial) => trial.number);
    }"""
    space = {
        **SPACE,
        "steps": {"type": "int", "low": 1, "high": 9},
        "data set": {"type": "categorical", "choices": ["a b", "c:d"]},
        "batch": {"type": "categorical", "choices": [16, 32]},
    }
    some = {"steps": 1, "attempts": 1, "preemptions": 0}
    rows: list[tuple[int, str, float | None, str, dict[str, Any]]] = [
        (0, "completed", 0.9, "", {"lr": 0.0123456, "optimizer": "adamw", "steps": 3, "data set": "a b", "batch": 16}),
        (1, "failed", None, "no memory", {"lr": 0.5, "optimizer": "sgd", "momentum": 0.9, "data set": "c:d", "batch": 32}),
        (12, "running", 0.5, "", {"lr": 0.1, "optimizer": "adamw", "steps": 9, "data set": "c:d", "batch": 32}),
    ]  # fmt: skip
    trials = [
        {"id": f"trial_{number:05}", "number": number, "state": state, "best": best, "metric": best, **some}
        | {"config": config, "cost_usd": number / 10, "reason": reason}
        for number, state, best, reason, config in rows
    ]
    for text, expected in (
        ("", [0, 1, 12]),
        ("lr>0.1", [1]),
        ("lr >= 0.1 optimizer:adam", [12]),
        ("lr=0.01235", [0]),
        ("lr<=1e-1", [0, 12]),
        ("optimizer=adam", []),
        ("optimizer=AdamW", [0, 12]),
        ("adamw running", [12]),
        ("momentum<1", [1]),
        ("acc>0.6", [0]),
        ("best<0.6", [12]),
        ("steps>3", [12]),
        ("config.steps=3", [0]),
        ("paid>0.05 paid<1", [1]),
        ("trial=#12", [12]),
        ("batch=32 state:run", [12]),
        ('"data set":"a b"', [0]),
        ('"data set":c:d', [1, 12]),
        ("memory", [1]),
        ("#12", [12]),
        ("nowhere", []),
        ("STATE:completed", [0]),
        ("lrr>1", "lrr is not a column; the columns are trial, state, best, newest, steps, paid, lr, width, optimizer, "
         "momentum, steps, data set, batch, attempts, preempted"),
        ("lr>", "write a number after lr>"),
        ("lr>many", "many is not a number; write lr>0.01, for example"),
        ("optimizer>adamw", "optimizer is text: write optimizer:adamw"),
        ("state:", "write a text after state:"),
        ('optimizer:"adamw', 'a " is not closed'),
        ('"adamw', 'a " is not closed'),
    ):  # fmt: skip
        assert page.evaluate(ask, [space, trials, text]) == expected, text
    reported = """async (later) => {
        const { Model } = await import("/static/model.js");
        const model = new Model({ objective: { metric: "acc", mode: "max" }, rungs: [] });
        model.fill({ trials: [], metrics: ["acc"] });
        const report = (step, metrics) => model.apply("report", { trial: "trial_0", step, metric: 1, cost_usd: 0, metrics, seq: step });
        report(1, { acc: 1, loss: 5 });
        model.chart("loss");
        report(3, { acc: 1, loss: 3 });
        report(4, { acc: 1, loss: "none" });
        model.fillCharted({ metric: "loss", trials: [{ id: "trial_0", steps: [1, 2, 3], metric: [5, null, 3] }] });
        model.fillCharted({ metric: "acc", trials: [{ id: "trial_0", steps: [1], metric: [7] }] });
        report(5, { acc: 1, loss: 2 });
        const { xs, ys } = model.curveOf(model.trialOf("trial_0"));
        return [[...model.metrics], xs, ys];
    }"""
    assert page.evaluate(reported) == [["acc", "loss"], [1, 2, 3, 4, 5], [5, None, 3, None, 2]]


def test_best_and_paid_of_a_trial_in_the_browser_modules(page: Page, finished: Finished) -> None:
    page.goto(finished.url)
    ask = """async () => {
        const { Model } = await import("/static/model.js");
        const model = new Model({ objective: { metric: "acc", mode: "max" }, rungs: [] });
        const curve = { state: "running", reason: "", config: {}, attempts: 1, preemptions: 0, preemptions_at: [] };
        model.fill({ trials: [{ id: "trial_0", ...curve, best_metric: 0.7, total_usd: 0.01, steps: [1, 2], metric: [0.7, 0.9] }] });
        const trial = model.trialOf("trial_0"), seen = [];
        const row = (metric) => model.apply("trial", { id: "trial_0", steps: 3, metric, latest_metric: 0.9, cost_usd: 0.01 });
        const see = () => seen.push([trial.best, trial.cost_usd]);
        see();
        row(0.8);
        see();
        model.apply("report", { trial: "trial_0", step: 4, metric: 0.95, violation: 0.5, cost_usd: 5 });
        see();
        model.apply("report", { trial: "trial_0", step: 5, metric: 0.85, violation: 0, cost_usd: 5 });
        row(0.8); // older than the report
        see();
        row(null);
        see();
        return seen;
    }"""
    assert page.evaluate(ask) == [[0.7, 0.01], [0.8, 0.01], [0.8, 0.01], [0.85, 0.01], [0.85, 0.01]]

"""`python -m benchmarks.page`: measure the page in a real Chromium over a real HTTP server.

Measures the time and bytes to show a job, the time from the commit of an event until the page draws it, and the frames per second while
hovering. The job has 1,000 trials of 100 reports. The peer draws one uPlot series per trial.
"""

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright
from sqlalchemy import insert

from benchmarks.best import front_of_reports
from tests import fakes
from tests.browser.conftest import FLAGS, Site
from tests.fakes import KEY
from tools.programs import CHROMIUM, find
from tuner.database.tables import events, reports, trials
from tuner.database.tables import front as front_table
from tuner.domain.ids import trial_id

LOADS, EVENTS, MOVES = 7, 25, 240
COUNT_FRAMES = """() => { window.frames_seen = 0; window.counting = true; window.began = performance.now();
  const tick = () => { if (window.counting) { window.frames_seen += 1; requestAnimationFrame(tick); } }; requestAnimationFrame(tick); }"""
FRAMES = "() => { window.counting = false; return 1000 * window.frames_seen / (performance.now() - window.began); }"
PLAIN = """([count, steps]) => {
  const xs = Array.from({length: steps}, (_, i) => i + 1), data = [xs], series = [{}];
  for (let n = 0; n < count; n++) {
    const end = Math.random(), speed = 0.02 + Math.random() / 2;
    data.push(xs.map((x) => end * (1 - Math.exp(-speed * x)) + 0.01 * Math.random()));
    series.push({stroke: "#7b8899", width: 1, points: {show: false}});
  }
  const place = document.querySelector(".chart"), kept = document.createElement("div");
  place.parentElement.prepend(kept);
  place.style.display = "none";
  kept.id = "plain";
  new uPlot({width: 1200, height: 340, legend: {show: false}, scales: {x: {time: false}}, cursor: {focus: {prox: 40}}, focus: {alpha: 0.3}, series}, data, kept);
}"""
WATCH = """() => { window.seen = []; const place = document.querySelector('[aria-roledescription=chart]');
  new MutationObserver(() => requestAnimationFrame(() => window.seen.push(performance.timeOrigin + performance.now())))
    .observe(place, {attributes: true, attributeFilter: ['aria-label']}); }"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--reports", type=int, default=100)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, sync_playwright() as playwright:
        service = fakes.service_in(Path(folder) / "home")
        site = Site(service)
        fidelity = {"unit": "epoch", "min": 1, "max": given.reports}
        empty = site.submit(fidelity=fidelity)
        full = site.submit(fidelity=fidelity, budget={"usd": 1000})
        fakes.begin(service, full)
        seq = fill(site, full, given.trials, given.reports)
        browser_path = next(filter(None, map(find, CHROMIUM)))
        browser = playwright.chromium.launch(executable_path=browser_path, args=FLAGS)
        loads(browser, site, empty, "an empty job", 0)
        loads(browser, site, full, "a full job", given.trials * given.reports)
        page = opened(browser, site, full, given.trials * given.reports)
        latency(page, site, full, seq, given.trials)
        hover(page, given.trials, given.reports)
        browser.close()
        site.stop()
        service.database.dispose()


def fill(site: Site, job: str, count: int, steps: int) -> int:
    """Fill the job with noisy curves that rise to an asymptote, and return the number of the last event."""
    project = site.service.project
    with site.service.database.write() as db:
        for number in range(count):
            rows = list(curve(Random(number), job, project, number, steps))
            config = json.dumps({"lr": 0.1, "width": 8})
            db.execute(
                insert(trials),
                {
                    "job": job,
                    "project": project,
                    "trial": trial_id(number),
                    "number": number,
                    "state": "running" if number < 8 else "completed",
                    "config": config,
                    "reason": "",
                    "steps": steps,
                    "value": rows[-1]["value"],
                    "seq": 0,
                    "created_at": 0,
                    "updated_at": 0,
                },
            )
            db.execute(insert(reports), rows)
        seq = count * steps
        db.execute(
            insert(events),
            {"job": job, "project": project, "seq": seq, "at": 0, "type": "Reported", "body": "{}"},
        )
    with site.service.database.write() as db:
        db.execute(insert(front_table), front_of_reports(db, job))
    return seq


def curve(rng: Random, job: str, project: str, number: int, steps: int) -> Iterator[dict[str, Any]]:
    end, speed = rng.betavariate(2, 2), rng.uniform(0.02, 0.5)
    for step in range(1, steps + 1):
        value = round(end * (1 - math.exp(-speed * step)) + rng.gauss(0, 0.01), 6)
        yield report(job, project, number, step, value, number * steps + step)


def report(job: str, project: str, number: int, step: int, value: float, seq: int) -> dict[str, Any]:
    return {
        "job": job,
        "project": project,
        "trial": trial_id(number),
        "step": step,
        "attempt": 1,
        "at": 0,
        "value": value,
        "metrics": json.dumps({"acc": value}),
        "usd": step * (10 + number % 50),
        "gpu_ms": 0,
        "duration_ns": step * 10**9,
        "seq": seq,
    }


def opened(
    browser: Browser, site: Site, job: str, points: int, sizes: list[tuple[str, int]] | None = None
) -> Page:
    """Open the job in a fresh profile with an empty cache, and return the page when all curves are drawn."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.add_init_script(f"if (location.protocol === 'http:') localStorage.setItem('tuner.key', '{KEY}')")
    page = context.new_page()
    if sizes is not None:
        session, urls = context.new_cdp_session(page), dict[str, str]()
        session.send("Network.enable")
        session.on(
            "Network.requestWillBeSent",
            lambda event: urls.update({event["requestId"]: event["request"]["url"]}),
        )
        session.on(
            "Network.loadingFinished",
            lambda event: sizes.append((urls.get(event["requestId"], ""), int(event["encodedDataLength"]))),
        )
    page.goto(f"{site.url}#/jobs/{job}")
    page.wait_for_function(
        f"() => document.querySelector('[aria-roledescription=chart]')?.getAttribute('aria-label')?.endsWith(', {points} reports')",
        timeout=60_000,
        polling="raf",
    )
    return page


def loads(browser: Browser, site: Site, job: str, name: str, points: int) -> None:
    took, own, answers = [], [], []
    for _ in range(LOADS):
        sizes: list[tuple[str, int]] = []
        began = time.perf_counter()
        page = opened(browser, site, job, points, sizes)
        took.append(1000 * (time.perf_counter() - began))
        page.wait_for_timeout(200)
        own.append(sum(size for url, size in sizes if "/v1/" not in url))
        answers.append(sum(size for url, size in sizes if "/curves" in url or url.endswith(job)))
        page.context.close()
    print(
        f"{name}, nothing cached: drawn after {statistics.median(took):.0f} ms (median of {LOADS}, most {max(took):.0f}); "
        f"page {max(own) / 1000:.0f} kB, job and curves {max(answers) / 1000:.0f} kB",
        flush=True,
    )


def latency(page: Page, site: Site, job: str, seq: int, count: int) -> None:
    """Measure the latency of reports of one more trial, one after the other."""
    page.wait_for_timeout(3000)
    page.evaluate(WATCH)
    project, number, sent = site.service.project, count - 1, []
    for step in range(1, EVENTS + 1):
        seq += 1
        with site.service.database.write() as db:
            db.execute(insert(reports), report(job, project, number, 100_000 + step, 0.5, seq))
            db.execute(
                insert(events),
                {"job": job, "project": project, "seq": seq, "at": 0, "type": "Reported", "body": "{}"},
            )
        sent.append(1000 * time.time())
        page.wait_for_function(f"() => window.seen.length >= {step}", polling=20)
        page.wait_for_timeout(37 * step % 400)
    seen = page.evaluate("window.seen")
    took = sorted(there - here for here, there in zip(sent, seen, strict=False))
    print(
        f"event to pixel: median {statistics.median(took):.0f} ms, most {took[-1]:.0f} ms of {len(took)}",
        flush=True,
    )


def hover(page: Page, count: int, steps: int) -> None:
    ours = frames(page, ".chart .u-over")
    page.evaluate(PLAIN, [count, steps])
    plain = frames(page, "#plain .u-over")
    print(
        f"hovering over {count} × {steps}: {ours:.0f} frames a second; one uPlot series a trial: {plain:.1f}",
        flush=True,
    )


def frames(page: Page, selector: str) -> float:
    place = page.locator(selector).first
    place.scroll_into_view_if_needed()
    box = place.bounding_box()
    assert box is not None
    page.evaluate(COUNT_FRAMES)
    began = time.perf_counter()
    for move in range(MOVES):
        x = box["x"] + box["width"] * (0.05 + 0.9 * (move % 60) / 60)
        page.mouse.move(x, box["y"] + box["height"] * (0.5 + 0.4 * math.sin(move / 7)))
        page.wait_for_timeout(12)
        if time.perf_counter() - began > 30:
            break
    return float(page.evaluate(FRAMES))


if __name__ == "__main__":
    main()

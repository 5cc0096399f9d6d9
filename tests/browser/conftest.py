"""Fixtures: the page in a real Chromium, over a real HTTP server, over a service without Ray."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from playwright.sync_api import Browser, BrowserContext, Locator, Page, Route, expect, sync_playwright

from tests import fakes
from tests.fakes import KEY, FakeService
from tools.programs import CHROMIUM, find
from tuner.cluster.nodes import Node
from tuner.simulator.world import Faults, SimulatedRun
from tuner.web import FOLDER

AXE = Path(__file__).parent / "vendor" / "axe.min.js"
FLAGS = [
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WAIT_MS = 60_000  # only a limit for hangs; no test depends on it
IDLE = Node("s1", 2, 0, 0, {"ray.io/market-type": "spot", "instance-type": "tiny", "usd-per-hour": "0.6"})
FIDELITY = {"unit": "epoch", "min": 1, "max": 27, "reduction_factor": 3}

expect.set_options(timeout=WAIT_MS)


class Site:
    """A service whose address stays reserved while it is stopped."""

    def __init__(self, service: FakeService) -> None:
        self.service, self.client = service, fakes.client_of(service)
        self._app = fakes.app_of(service, page_files=FOLDER)
        self._place = _bound(0)  # keeps the port reserved while the service is stopped
        self.port = self._place.getsockname()[1]
        self.start()
        self.url = f"http://127.0.0.1:{self.port}/"

    def start(self) -> None:
        listening = _bound(self.port)
        config = uvicorn.Config(self._app, log_level="critical", timeout_graceful_shutdown=0)
        self._server = uvicorn.Server(config)
        self._listening = listening
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listening]}, daemon=True)
        self._thread.start()
        until(lambda: self._server.started)

    def stop(self) -> None:
        """Stop the server and close all its connections."""
        self._server.should_exit = True
        self._thread.join(WAIT_MS / 1000)
        self._listening.close()
        assert not self._thread.is_alive()

    def close(self) -> None:
        self.stop()
        self._place.close()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def submit(self, **changes: Any) -> str:
        return fakes.submit(self.client, **changes)

    def simulate(self, job: str, **options: Any) -> SimulatedRun:
        """Run the job from the service's current time on."""
        return fakes.simulate(self.service, job, at=self.service.now(), **options)

    def get(self, path: str, **params: Any) -> Any:
        answer = self.client.get(f"/v1{path}", params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()


def _bound(port: int) -> socket.socket:
    """Return a socket that is bound but does not listen.

    Another socket may have the same address, as long as only one of them listens.
    """
    bound_socket = socket.socket()
    bound_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound_socket.bind(("127.0.0.1", port))
    return bound_socket


def until(condition: Callable[[], Any]) -> Any:
    """Return the condition's value once it is true. Use it only for conditions that no page shows."""
    deadline = time.monotonic() + WAIT_MS / 1000
    while time.monotonic() < deadline:
        if condition_value := condition():
            return condition_value
        time.sleep(0.02)
    raise AssertionError("it did not come true")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    executable = next(filter(None, map(find, CHROMIUM)), None)
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=executable, args=FLAGS, timeout=2 * WAIT_MS)
        yield made
        made.close()


def _site_in(home: Path, kind: type[Site] = Site) -> Iterator[Any]:
    service = fakes.service_in(home)
    made = kind(service)
    yield made
    made.close()
    service.database.dispose()


@pytest.fixture(scope="session")
def _shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    yield from _site_in(tmp_path_factory.mktemp("shared"))


@pytest.fixture
def site(_shared_site: Site) -> Iterator[Site]:
    """A running service, shared by the tests, with jobs of other tests."""
    yield _shared_site
    if not _shared_site.is_running:
        _shared_site.start()


@pytest.fixture
def empty_site(tmp_path: Path) -> Iterator[Site]:
    yield from _site_in(tmp_path / "home")


class Finished(Site):
    """A site with a job that ran to its end through crashes and preemptions. No test changes it."""

    def __init__(self, service: FakeService) -> None:
        super().__init__(service)
        up_s = [*((20.5 * n, 20.5 * n + 9) for n in range(3)), (65, None)]
        self.job = self.submit(fidelity=FIDELITY, budget={"usd": 0.002}, tags={"project": "vision"})
        fakes.simulate(service, self.job, faults=Faults(crash=0.05), up_s=up_s)
        fakes.stand_idle(service, IDLE, looks=12, seconds=30)
        service.now.pass_s(2 * 3600)
        fakes.stand_idle(service, looks=1, seconds=5)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    yield from _site_in(tmp_path_factory.mktemp("finished"), Finished)


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A fresh browser profile with the key.

    A request to another host or an error in the console fails the test.
    """
    # Without a GPU, each frame of an animation is drawn by the processor, as long as a page loads.
    made = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    made.set_default_timeout(WAIT_MS)
    made.add_init_script(
        "if (location.protocol === 'http:')"
        f" localStorage.setItem('tuner.key', localStorage.getItem('tuner.key') ?? '{KEY}')"
    )
    elsewhere: list[str] = []
    made.on("request", lambda asked: elsewhere.append(asked.url) if not _is_here(asked.url) else None)
    errors: list[str] = []
    made.on("weberror", lambda error: errors.append(str(error.error)))
    yield made
    made.close()
    assert elsewhere == []
    assert errors == []


@pytest.fixture
def page(context: BrowserContext) -> Page:
    return context.new_page()


def _is_here(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "data:", "blob:"))


def violations(page: Page, *rules: str) -> list[str]:
    """Return the accessibility violations that axe finds on the page by all its rules, or by some of them.

    The debugger runs axe, because the page's policy would block it.
    """
    if not page.evaluate("'axe' in window"):
        page.evaluate(f"{AXE.read_text()};0")
    options = {"resultTypes": ["violations"], **({"runOnly": rules} if rules else {})}
    axe_violations = page.evaluate(
        "async (options) => (await axe.run(options)).violations.map("
        "(one) => `${one.id}: ${one.nodes.map((node) => node.html).join(' | ')}`)",
        options,
    )
    return list(axe_violations)


def click_twice(page: Page, button: Locator, url: str) -> None:
    """Double-click so that the second click comes before any response, as on an idle machine."""
    waiting: list[Route] = []
    has_clicked = False

    def pass_on(route: Route) -> None:
        if has_clicked:
            route.continue_()
        else:
            waiting.append(route)

    page.route(url, pass_on)
    button.dblclick()
    has_clicked = True
    for route in waiting:
        route.continue_()


def answer_late(page: Page, url: str, state: str, *, polls_ms: int, waits_ms: int) -> None:
    """Answer the next request for the list at `url` only after `waits_ms` of the page's clock, with its first item in this state.

    The page polls the list after `polls_ms`. Requests that follow meanwhile are never answered.
    """
    waiting: list[Route] = []
    page.route(url, lambda route: waiting.append(route))
    page.clock.run_for(polls_ms)
    while not waiting:
        page.wait_for_timeout(20)
    page.clock.run_for(waits_ms)
    answer = waiting[0].fetch()
    listed = answer.json()
    listed["items"][0]["state"] = state
    waiting[0].fulfill(response=answer, json=listed)


def see(page: Page, site: Site, job: str) -> None:
    page.goto(f"{site.url}#/jobs/{job}")
    expect(page.get_by_role("heading", level=1)).to_contain_text("digits")


def section(page: Page, name: str) -> Any:
    return page.get_by_role("region", name=name, exact=True)


def expect_all_reports(page: Page, site: Site, job: str) -> None:
    """Wait until the chart's label counts all trials and reports that REST has."""
    shown = site.get(f"/jobs/{job}")
    trials = sum(shown["progress"]["trials"].values())
    curves = page.get_by_role(
        "group", name=f"Learning curves of {trials} trials, {shown['progress']['steps']} reports"
    )
    expect(curves).to_be_visible()

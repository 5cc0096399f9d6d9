"""Links from a job's page to its study in optuna-dashboard and to Ray's dashboard."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests import fakes
from tests.api.test_ray_dashboard import Head, serving
from tests.browser.conftest import Site
from tests.fakes import KEY
from tests.mirrors.following import mirror_all
from tuner import web
from tuner.mirrors.optuna import OptunaMirror

pytestmark = [pytest.mark.browser, pytest.mark.needs("chromium")]


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("mirrored")
    made = fakes.service_in(folder / "home")
    url = f"sqlite:///{folder}/optuna.db"
    service = replace(made, settings=replace(made.settings, optuna_storage=url))
    site = Site(service)
    job = site.submit(budget={"usd": 0.002})
    fakes.simulate(service, job)
    mirror_all(service, lambda: OptunaMirror(url))
    site.job = job  # type: ignore[attr-defined]
    yield site
    site.close()
    service.database.dispose()


@pytest.mark.extended
def test_link_on_the_page_opens_the_optuna_study(context: BrowserContext, page: Page, mirrored: Site) -> None:
    job: str = mirrored.job  # type: ignore[attr-defined]
    page.goto(f"{mirrored.url}#/jobs/{job}")
    with context.expect_page() as opened:
        page.get_by_role("link", name="Optuna dashboard").click()
    shown = opened.value
    expect(shown).to_have_url(f"{mirrored.url}optuna/dashboard/studies/1")
    expect(shown.get_by_text(f"digits {job} (id=1)")).to_be_visible()
    for name in ("History", "Hyperparameter Importance", "Timeline"):
        expect(shown.get_by_text(name, exact=True).last).to_be_visible()
    expect(shown.locator("#graph-hyperparameter-importances .yaxislayer-above")).to_contain_text("width")
    shown.goto(f"{mirrored.url}optuna/dashboard/studies/1/analytics")
    expect(shown.get_by_text("Slice").first).to_be_visible()
    expect(shown.locator(".js-plotly-plot .xtitle").first).to_have_text("Param lr")
    assert shown.evaluate("document.cookie") == ""


@pytest.fixture
def head(mirrored: Site) -> Iterator[Head]:
    yield from serving(mirrored.service)


def test_link_on_the_page_opens_the_ray_dashboard(
    context: BrowserContext, page: Page, mirrored: Site, head: Head
) -> None:
    page.goto(f"{mirrored.url}#/jobs/{mirrored.job}")  # type: ignore[attr-defined]
    with context.expect_page() as opened:
        page.get_by_role("link", name="Ray dashboard").click()
    shown = opened.value
    expect(shown).to_have_url(f"{mirrored.url}ray/#/jobs/{mirrored.job}-1")  # type: ignore[attr-defined]
    expect(shown.get_by_text('{"path": "/"}')).to_be_visible()
    method, path, headers = head.requests[0]
    assert (method, path, headers["authorization"]) == ("GET", "/", f"Bearer {head.token}")
    assert "cookie" not in headers


def test_address_with_a_key_opens_the_ray_dashboard(
    context: BrowserContext, mirrored: Site, head: Head
) -> None:
    page = context.new_page()
    page.goto(web.ray_address(mirrored.url.rstrip("/"), KEY, mirrored.job))  # type: ignore[attr-defined]
    expect(page).to_have_url(f"{mirrored.url}ray/#/jobs/{mirrored.job}-1")  # type: ignore[attr-defined]
    expect(page.get_by_text('{"path": "/"}')).to_be_visible()
    page.goto("about:blank")
    page.goto(web.ray_address(mirrored.url.rstrip("/"), "", ""))
    expect(page).to_have_url(f"{mirrored.url}ray/")

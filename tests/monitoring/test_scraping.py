"""Debian's Prometheus scrapes the running service. Its values equal those of REST, and an alert fires."""

import json
import re
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import yaml

from tests import fakes
from tests.fakes import FakeService
from tests.monitoring.prometheus import PROMETHEUS
from tuner.api.app import create_app
from tuner.service.ledger_audit import Audit
from tuner.service.maintenance import StorageWatch

pytestmark = pytest.mark.needs("prometheus")

TIMEOUT_S = 240.0
LISTENS = re.compile(r'msg="Listening on" address=(\S+)')


def until(what: str, condition: Callable[[], Any]) -> Any:
    """Return the condition's value once it is true. The limit is only for hangs."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        if result := condition():
            return result
        time.sleep(0.1)
    raise AssertionError(f"not within {TIMEOUT_S:.0f} s: {what}")


@contextmanager
def served(service: FakeService) -> Iterator[int]:
    """The app over real HTTP, on its own port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(create_app(service), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            until("the app is served", lambda: server.started)
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def prometheus(folder: Path, target: int) -> Iterator[str]:
    """Run Prometheus with the shipped configuration and rules, evaluated every half second. It is stopped by its pid."""
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "500ms"}
    (job,) = (
        scrape_config for scrape_config in config["scrape_configs"] if scrape_config["job_name"] == "tuner"
    )
    job["static_configs"] = [{"targets": [f"127.0.0.1:{target}"]}]
    config["scrape_configs"] = [job]
    rules = folder / "rules"
    rules.mkdir()
    for file in sorted((PROMETHEUS / "rules").glob("*.yml")):
        known = yaml.safe_load(file.read_text())
        for rule in (rule for group in known["groups"] for rule in group["rules"]):
            if "for" in rule:
                rule["for"] = "1s"
        (rules / file.name).write_text(yaml.safe_dump(known))
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    (folder / "api_key").write_text(fakes.KEY)
    command = [
        "prometheus",
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        "--web.listen-address=127.0.0.1:0",
    ]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            match = until("it listens", lambda: LISTENS.search((folder / "log").read_text()))
            yield f"http://{match[1]}"
        finally:
            process.terminate()


def query_prometheus(url: str, path: str, **query: str) -> Any:
    try:
        with urllib.request.urlopen(
            f"{url}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=60
        ) as response:
            return json.load(response)["data"]
    except OSError:
        return None


def scraped(url: str, metric: str) -> float | None:
    """Return the last scraped value, even if a later scrape timed out."""
    return value(url, f"sum(last_over_time({metric}[1h]))")


def value(url: str, query: str) -> float | None:
    answer = query_prometheus(url, "query", query=query)
    return float(answer["result"][0]["value"][1]) if answer and answer["result"] else None


@pytest.fixture
def fed(service: FakeService) -> FakeService:
    """A service with a job that nearly spent its budget, after one pass of the audit and of the storage check."""
    client = fakes.client_of(service)
    assert client.put("/v1/budgets/lab", json={"usd": 0.00105}).status_code in (200, 201)
    job = fakes.submit(client)
    fakes.simulate(service, job)
    Audit(service).some()
    StorageWatch(service).one_pass()
    return service


def test_prometheus_scrapes_the_service_and_an_alert_fires(fed: FakeService, tmp_path: Path) -> None:
    client = fakes.client_of(fed)
    spent = client.get("/v1/spend").json()["total"]["usd"]
    budget = client.get("/v1/budgets/lab").json()
    assert spent / 0.00105 > 0.9, budget
    with served(fed) as target, prometheus(tmp_path, target) as url:
        until("the service is scraped", lambda: value(url, 'max_over_time(up{job="tuner"}[1h])') == 1)
        assert scraped(url, "tuner_spend_usd_total") == pytest.approx(spent)
        assert scraped(url, 'tuner_jobs{state="succeeded"}') == 1
        assert scraped(url, "tuner_ledger_violations") == 0
        assert scraped(url, "tuner_storage_up") == 1
        assert scraped(url, 'tuner_budget_spent_usd{budget="lab"}') == pytest.approx(spent)
        types = query_prometheus(url, "metadata")
        assert types["tuner_spend_usd"][0]["type"] == types["tuner_steps"][0]["type"] == "counter"
        until(
            "a rule is recorded",
            lambda: value(url, "tuner:budget_used:ratio") == pytest.approx(spent / 0.00105),
        )
        (alert,) = until("the alert fires", lambda: firing(url, "TunerBudgetNearlySpent"))
        assert alert["labels"]["budget"] == "lab"
        assert alert["annotations"]["summary"] == "The budget lab is nearly spent"
        assert f"{100 * spent / 0.00105:.2f}"[:2] in alert["annotations"]["description"]
        health = until(
            "all rules are evaluated", lambda: "unknown" not in (states := healths(url)) and states
        )
        assert health == {"ok"}


def test_second_project_does_not_stop_the_scrapes(service: FakeService, tmp_path: Path) -> None:
    """The metrics then need the service's own key, which the shipped configuration sends."""
    client = fakes.client_of(service)
    assert client.post("/v1/projects", json={"name": "vision"}).status_code == 201
    with served(service) as target, prometheus(tmp_path, target) as url:
        until("the service is scraped", lambda: value(url, 'up{job="tuner"}') == 1)


def healths(url: str) -> set[str]:
    groups = (query_prometheus(url, "rules") or {"groups": []})["groups"]
    return {rule["health"] for group in groups for rule in group["rules"]}


def firing(url: str, name: str) -> list[dict[str, Any]]:
    answer = query_prometheus(url, "alerts") or {"alerts": []}
    return [
        alert
        for alert in answer["alerts"]
        if alert["labels"]["alertname"] == name and alert["state"] == "firing"
    ]

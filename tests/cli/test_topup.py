"""`tuner topup` over unreliable connections and twice at once: money is added once, and no other change is lost."""

from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner, Result

from tests import fakes
from tests.fakes import FakeService
from tuner.cli.main import app
from tuner.client import ApiError, Client

service, rest = fakes.fixtures("module")
Act = Callable[[], object]


class Line(httpx2.BaseTransport):
    """A transport that carries requests to the app and loses the responses of the first `breaks` PATCH requests.

    `before` runs while the first PATCH is on its way, `after` when its response was lost.
    """

    def __init__(
        self, rest: TestClient, *, breaks: int = 0, before: Act | None = None, after: Act | None = None
    ) -> None:
        self._inner, self.breaks, self.before, self.after = rest._transport, breaks, before, after
        self.dead = False

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        if self.dead:
            raise httpx2.ConnectError("refused", request=request)
        if request.method != "PATCH":
            return self._inner.handle_request(request)
        if self.before is not None:
            act, self.before = self.before, None
            act()
        answer = self._inner.handle_request(request)
        if self.breaks:
            self.breaks -= 1
            if self.after is not None:
                act, self.after = self.after, None
                act()
            raise httpx2.ReadError("the connection broke", request=request)
        return answer


@pytest.fixture(autouse=True)
def _awake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _s: None)


@pytest.fixture
def job(rest: TestClient) -> str:
    return fakes.submit(rest, budget={"usd": 10})


def budget(rest: TestClient, job: str) -> Any:
    return rest.get(f"/v1/jobs/{job}").json()["budget"]["usd"]


def top_up(line: Line, job: str, monkeypatch: pytest.MonkeyPatch, usd: str = "5") -> Result:
    monkeypatch.setattr("tuner.client.Client", lambda: Client("http://tuner", fakes.KEY, transport=line))
    return CliRunner().invoke(app, ["topup", job, "--usd", usd])


@pytest.mark.parametrize("breaks", range(5))
def test_top_up_with_lost_responses_is_added_once(
    rest: TestClient, job: str, monkeypatch: pytest.MonkeyPatch, breaks: int
) -> None:
    """The command succeeds even if no response arrives, because the budget shows that the change was made."""
    result = top_up(Line(rest, breaks=breaks), job, monkeypatch)
    assert result.exit_code == 0, result.stderr
    assert "$15.00" in result.stdout
    assert budget(rest, job) == 15


@pytest.mark.parametrize("usd", ["-5", "0", "0.0000004", "inf"])
def test_top_up_that_is_no_amount_of_micro_dollars_is_refused(
    rest: TestClient, job: str, monkeypatch: pytest.MonkeyPatch, usd: str
) -> None:
    result = top_up(Line(rest), job, monkeypatch, usd)
    assert result.exit_code == 2
    assert "at least 0.000001" in " ".join(result.stderr.replace("│", " ").split())
    assert budget(rest, job) == 10


@pytest.mark.parametrize("theirs", [12, 15])
def test_top_up_is_refused_after_a_concurrent_budget_change(
    rest: TestClient, job: str, monkeypatch: pytest.MonkeyPatch, theirs: float
) -> None:
    """The top-up is refused even if both changes set the same amount."""
    line = Line(rest, before=lambda: rest.patch(f"/v1/jobs/{job}", json={"budget": {"usd": theirs}}))
    result = top_up(line, job, monkeypatch)
    assert result.exit_code == 1
    assert f"was $10.00 and is now ${theirs}.00" in result.stderr
    assert "Your amount was not added" in result.stderr
    assert budget(rest, job) == theirs
    assert top_up(Line(rest), job, monkeypatch).exit_code == 0
    assert budget(rest, job) == theirs + 5


def test_budget_change_after_a_lost_response_is_kept(
    rest: TestClient, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line(rest, breaks=1, after=lambda: rest.patch(f"/v1/jobs/{job}", json={"budget": {"usd": 40}}))
    result = top_up(line, job, monkeypatch)
    assert result.exit_code == 1
    assert "$40.00" in result.stderr
    assert "unknown" in result.stderr
    assert budget(rest, job) == 40


def test_top_up_without_a_final_response_reports_an_unknown_outcome(
    rest: TestClient, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line(rest, breaks=1)
    line.after = lambda: setattr(line, "dead", True)
    result = top_up(line, job, monkeypatch)
    assert result.exit_code == 1
    assert f"tuner job {job}" in result.stderr
    assert "unknown" in result.stderr


class BeforeResume(Line):
    """A transport that refuses to resume jobs with `refusal`, or refuses the connection if it is None."""

    refusal: httpx2.Response | None = None

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        if not request.url.path.endswith("/resume"):
            return super().handle_request(request)
        if self.refusal is None:
            raise httpx2.ConnectError("refused", request=request)
        return self.refusal


@pytest.mark.parametrize("is_refused", [True, False])
def test_top_up_whose_resume_fails_says_that_the_budget_was_raised(
    rest: TestClient, service: FakeService, monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    problem = {"type": "urn:tuner:problem:conflict", "title": "Not now", "status": 409, "detail": "too busy"}
    line, code = BeforeResume(rest), "conflict" if is_refused else ""
    line.refusal = httpx2.Response(409, json=problem) if is_refused else None
    job = fakes.submit(rest, budget={"usd": 0.001})
    fakes.simulate(service, job)
    result = top_up(line, job, monkeypatch)
    assert result.exit_code == 1
    assert "The budget was raised from $0.001 to $5.001, but the job was not resumed: " in result.stderr
    assert f"run `tuner resume {job}`" in result.stderr
    with pytest.raises(ApiError, match=r"raised from \$5\.001 to \$10\.001") as caught:
        Client("http://tuner", fakes.KEY, transport=line).top_up(job, usd=5)
    assert (caught.value.code, caught.value.status) == (code, 409 if is_refused else 0)

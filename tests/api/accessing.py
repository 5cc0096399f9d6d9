"""Projects with members, each with an API key."""

from typing import Any

from starlette.testclient import TestClient
from starlette.types import ASGIApp

from tests import fakes
from tests.fakes import FakeService
from tests.one_loop import OneLoopClient


class People:
    """Clients of a service, by user, and the calls that create the users."""

    def __init__(self, service: FakeService, *, app: ASGIApp | None = None) -> None:
        self.service = service
        self._app: ASGIApp = fakes.SharedApp(service) if app is None else app
        self.operator = self.with_key(fakes.KEY)

    def project(self, name: str) -> TestClient:
        """Return the operator's client for a project, which is created if missing."""
        if name != "default":
            assert self.operator.post("/v1/projects", json={"name": name}).status_code in (201, 409)
        return self.with_key(fakes.KEY, project=name)

    def with_key(self, key: str | None, *, project: str | None = None) -> TestClient:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        if project is not None:
            headers["Tuner-Project"] = project
        return OneLoopClient(self._app, headers=headers, raise_server_exceptions=False)

    def key(self, user: str, role: str, project: str = "default", **changes: Any) -> dict[str, Any]:
        """Create a key for a member with this role, and return the response."""
        there = self.project(project)
        assert there.put(f"/v1/members/{user}", json={"role": role}).status_code in (200, 201)
        made = there.post("/v1/keys", json={"user": user, "name": "a test", **changes})
        assert made.status_code == 201, made.text
        created_key: dict[str, Any] = made.json()
        return created_key

    def member(self, user: str, role: str, project: str = "default") -> TestClient:
        return self.with_key(self.key(user, role, project)["secret"])

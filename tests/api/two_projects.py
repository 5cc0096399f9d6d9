"""One service with two projects, each with members, jobs, budgets and keys, and all kinds of callers of one of them."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

import tuner
from tests import fakes
from tests.api.accessing import People
from tests.fakes import FakeService
from tests.packages.making import plain
from tuner.checkpoints.artifacts import TrialArtifacts
from tuner.domain.access import ROLES

A, B = "optics", "speech"  # neither name is part of a word in a response
HOUR_S = 3600
ZIP = {"Content-Type": "application/zip"}
# Callers without access. Each name gives the reason.
OUT = ("no key", "mistyped", "expired", "revoked", "rotated out", "removed member", "disabled user")
IN = ROLES
UNLIKE = {
    "job": "job_00000000deadbeef",
    "name": "mark-nevers",
    "project": "nevers",
    "user": "mark-nevers-u",
    "key": "tnr_neverwas",
    "idempotency": "mark-nevers-once",
    "package": f"pkg_{'0' * 64}",
}
"""Ids that never existed, each as long as a real one."""


@dataclass(frozen=True)
class Things:
    """The ids in a project by parameter name, and `marks`: words that appear in nothing else."""

    ids: dict[str, str]
    marks: tuple[str, ...]


class World:
    """`callers` send requests to project B. Everything in A was requested before by A's members and the operator."""

    def __init__(self, service: FakeService) -> None:
        self.service = service
        app = fakes.app_of(service, page_files=Path(tuner.__file__).parent / "web" / "static")
        self.people = People(service, app=app)
        self.document: dict[str, Any] = app.openapi()
        self.a, self.b = self._filled(A, seed=1, usd=0.0013), self._filled(B, seed=5, usd=0.001)
        self.callers = {**self._outsiders(), **self._members()}

    def _filled(self, project: str, *, seed: int, usd: float) -> Things:
        people, mark = self.people, f"mark-{project}"
        there = people.project(project)
        made = people.key(f"{mark}-u", "submitter", project)
        algorithm = {"scheduler": "asha", "sampler": "random", "seed": seed}
        body = fakes.body(
            name=f"{mark}-job", tags={"owner": f"{mark}-tag"}, budget={"usd": usd}, algorithm=algorithm
        )
        idempotency = {"Idempotency-Key": f"{mark}-once"}
        job = there.post("/v1/jobs", json=body, headers=idempotency).json()["id"]
        fakes.simulate(self.service.of(project), job, seed=seed)
        stored = TrialArtifacts(self.service.settings.storage, project, job, "trial_00000")
        stored.add(1, 1, {"plot.png": f"{mark}-tag".encode()}, at_ns=0, max_files=9, max_bytes=1000)
        there.patch(f"/v1/jobs/{job}", json={"budget": {"usd": 0.1 + usd}})
        made_export = there.post(f"/v1/jobs/{job}/exports", json={})
        assert made_export.status_code == 202, made_export.text
        archive = plain({"mine.py": f"# {mark}"})
        package = there.post(
            "/v1/packages", content=archive, headers=ZIP, params={"name": f"{mark}-p"}
        ).json()
        limit = 7654.321 + seed
        assert there.put(f"/v1/budgets/{mark}", json={"usd": limit}).status_code == 201
        spent = there.get(f"/v1/jobs/{job}").json()["spend"]["usd"]
        ids = {
            "job": job,
            "trial": "trial_00000",
            "name": mark,
            "project": project,
            "user": f"{mark}-u",
            "key": made["id"],
            "idempotency": idempotency["Idempotency-Key"],
            "package": package["id"],
        }
        return Things(ids, (f"{mark}-tag", f"{mark}-job", f"{mark}-p", f"{limit}", f"{spent}"))

    def _outsiders(self) -> dict[str, TestClient]:
        people, made = (
            self.people,
            {name: self.people.key(f"out-{n}", "admin", B) for n, name in enumerate(OUT[2:6])},
        )
        there = people.project(B)
        assert there.delete(f"/v1/keys/{made['revoked']['id']}").status_code == 204
        rotated = there.post(f"/v1/keys/{made['rotated out']['id']}/rotate", json={"overlap": "0s"})
        assert rotated.status_code == 201
        assert there.delete(f"/v1/members/{made['removed member']['user']}").status_code == 204
        made["expired"] = people.key("out-0", "admin", B, expires_in="1h")
        made["disabled user"] = people.key("out-d", "admin", B)
        assert people.operator.patch("/v1/users/out-d", json={"disabled": True}).status_code == 200
        self.service.now.pass_s(HOUR_S)
        good = people.key("out-g", "admin", B)["secret"]
        swapped = good[:-1] + ("0" if good[-1] != "0" else "1")
        keys = {name: key["secret"] for name, key in made.items()}
        return {name: people.with_key({"mistyped": swapped, **keys}.get(name)) for name in OUT}

    def _members(self) -> dict[str, TestClient]:
        members = {role: self.people.member(f"in-{role}", role, B) for role in ROLES[:3]}
        return {**members, "operator": self.people.project(B)}

    def request(self, client: TestClient, method: str, path: str, ids: dict[str, str]) -> Any:
        """Send the smallest valid request of the route, so that the response depends on the caller alone."""
        filled = path.format(
            **{
                "trial": "trial_00000",
                "artifact": "plot.png",
                "export": "export_00001",
                "variant": "onnx",
                "trainable": fakes.ENTRY,
                **ids,
            }
        )
        headers = {"Idempotency-Key": ids["idempotency"]} if path == "/v1/jobs" and method == "POST" else {}
        body = self._body(method, path, ids)
        sent: dict[str, Any] = {} if body is None else {"json": body}
        if (method, path) == ("POST", "/v1/packages"):
            sent, headers = {"content": plain({"theirs.py": ""})}, ZIP
        return client.request(
            method, filled + QUERIES.get((method, path), "").format(**ids), headers=headers, **sent
        )

    def _body(self, method: str, path: str, ids: dict[str, str]) -> Any:
        job = fakes.body(warm_start={"jobs": [ids["job"]]}, teacher={"job": ids["job"]})
        return {
            ("POST", "/v1/jobs"): job,
            ("POST", "/v1/pilots"): fakes.body(planning={"pilot": {"usd": 0.0005}}),
            ("POST", "/v1/plans"): fakes.body(
                budget={"usd": 0.001, "trials": 1}, planning={"steps_from": [ids["job"]]}
            ),
            ("POST", "/v1/estimates"): {"compute_optimal": {"flops": 1e20}},
            ("PATCH", "/v1/jobs/{job}"): {"priority": 1},
            ("POST", "/v1/jobs/{job}/exports"): {},
            ("PUT", "/v1/budgets/{name}"): {"usd": 1.0, "parent": None},
            ("PUT", "/v1/quota"): {},
            ("POST", "/v1/projects"): {"name": "a-new-one"},
            ("PATCH", "/v1/users/{user}"): {"disabled": False},
            ("PUT", "/v1/members/{user}"): {"role": "viewer"},
            ("POST", "/v1/keys"): {"user": ids["user"], "name": "x"},
            ("POST", "/v1/keys/{key}/rotate"): {"overlap": "1h"},
        }.get((method, path))


QUERIES = {
    ("GET", "/v1/best"): f"?trainable={fakes.ENTRY}&metric=acc",
    ("GET", "/v1/spend"): "?group_by=tag:owner&group_by=job",
}
_VARYING = (
    (re.compile(r"tnr_[a-z0-9]{8}(_[\w-]{51})?"), "KEY"),
    (re.compile(r"whsec_[\w-]+"), "SECRET"),
    (re.compile(r"job_[0-9a-f]{16}"), "JOB"),
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "TIME"),
)


def alike(text: str, ids: dict[str, str]) -> str:
    """Return a response without the ids of the request and without values that differ each time."""
    for name, resource_id in sorted(ids.items(), key=lambda pair: -len(pair[1])):
        text = text.replace(
            resource_id, f"<{'it' if name in ('name', 'project', 'user', 'idempotency') else name}>"
        )
    for varying, word in _VARYING:
        text = varying.sub(word, text)
    return text

"""Requests that schemathesis generates from the OpenAPI document, ordered so that responses lead to further calls."""

import contextlib
import gzip
import shutil
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from schemathesis.checks import not_a_server_error
from schemathesis.core.transport import Response
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.specs.openapi.stateful import collect_transitions

from tests import fakes
from tests.api.direct import Direct
from tests.packages.making import plain
from tuner.database.sqlite import sqlite3


@schemathesis.serializer("application/zip")
def as_drawn(_: Any, value: Any) -> bytes:
    """Send generated archives unchanged: bytes, or text that represents bytes."""
    return value if isinstance(value, bytes) else str(getattr(value, "data", value)).encode(errors="replace")


CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
STEPS = settings(
    max_examples=5,
    stateful_step_count=40,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
# Accepted bodies. Hardly any generated body is accepted, so without these no workflow would get past its first call.
PILOT = fakes.body(planning={"pilot": {"usd": 0.0005}})
RIGHT: dict[str, dict[str, Any]] = {
    "POST /v1/jobs": fakes.body(),
    "POST /v1/plans": fakes.body(budget={"usd": 0.0001, "trials": 2}),
    "POST /v1/pilots": PILOT,
    "POST /v1/jobs/{job}/exports": {"formats": ["onnx"], "max_cost_usd": 0.01},
    "PUT /v1/budgets/{name}": {"usd": 1000},
    "PUT /v1/quota": {"usd": 1000},
    "PUT /v1/members/{user}": {"role": "viewer"},
    "POST /v1/keys": {"user": "alice", "name": "hers"},
    "POST /v1/projects": {"name": "another"},
}
TAGGED = {"POST /v1/jobs", "POST /v1/pilots"}


class Tried:
    """How many requests were sent, by call and by the status of the answer."""

    def __init__(self) -> None:
        self.by_status, self.by_call = Counter[int](), Counter[str]()

    def add(self, other: "Tried") -> None:
        self.by_status += other.by_status
        self.by_call += other.by_call

    def __str__(self) -> str:
        statuses = ", ".join(f"{count} x {status}" for status, count in sorted(self.by_status.items()))
        cases = self.by_status.total()
        return f"{cases} cases of {len(self.by_call)} calls: {statuses}; 0 undocumented answers"


class Workflows:
    """Workflows of requests to a service with a member and a finished job.

    The service is the same at the start of each example, so that the generated requests depend on the seed alone.
    """

    def __init__(self, folder: Path) -> None:
        made = fakes.service_in(folder)
        self._service = replace(made, settings=replace(made.settings, packages=True))
        client = fakes.client_of(self._service)
        assert client.put("/v1/members/alice", json={"role": "submitter"}).is_success
        fakes.simulate(self._service, fakes.submit(client))
        self._file, self._kept = folder / "tuner.db", folder / "kept.db"
        self._service.database.dispose()
        with contextlib.closing(sqlite3.connect(self._file)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copyfile(self._file, self._kept)
        self._at = self._service.now.at
        self.direct = Direct(fakes.SharedApp(self._service))
        self.tried, self._machine = Tried(), _machine(self)

    def run(self, number: int) -> Tried:
        """Send the requests of one seed, and return their counts.

        Raises:
            Exception: schemathesis' failure, for a response that the document does not allow.
        """
        self.tried = Tried()
        seed(number)(self._machine).run(settings=STEPS)
        return self.tried

    def send_each(self, calls: Collection[str]) -> Tried:
        """Send one generated request of each of these calls, for example `PUT /v1/quota`, and return their counts."""
        self.tried = Tried()
        for operation in (operation_result.ok() for operation_result in _document().get_all_operations()):
            if operation.label in calls:
                self._send_one(operation)
        return self.tried

    def _send_one(self, operation: Any) -> None:
        @settings(STEPS, max_examples=1, derandomize=True)
        @given(case=operation.as_strategy())
        def send(case: Any) -> None:
            machine = self._machine()
            machine.setup()
            machine.no_answer_leads_to(case=case)
            machine.teardown()

        send()

    def begin(self) -> None:
        self._service.database.dispose()
        for other in self._file.parent.glob("tuner.db-*"):
            other.unlink()
        shutil.copyfile(self._kept, self._file)
        self._service.now.at = self._at

    def close(self) -> None:
        self.direct.close()
        self._service.database.dispose()


def documented() -> set[str]:
    """Return all calls of the document, by method and path."""
    paths = fakes.shared_app().openapi()["paths"]
    return {f"{verb.upper()} {path}" for path, verbs in paths.items() for verb in verbs}


async def at_once(work: Callable[..., Any], *args: Any, **_: Any) -> Any:
    """Run the work without a thread, which would take a fifth of a request's time."""
    return work(*args)


@cache
def _document() -> Any:
    return schemathesis.openapi.from_dict(fakes.shared_app().openapi())


def _alone(document: Any) -> Any:
    """Generate a case of a call that schemathesis leaves out of its scenarios because no response leads to it or on from it."""
    operations = [operation_result.ok() for operation_result in document.get_all_operations()]
    known = collect_transitions(operations).operations
    return st.one_of(
        *(
            operation.as_strategy(generation_mode=mode)
            for operation in operations
            if operation.label not in known
            for mode in (
                list(GenerationMode) if operation.query or operation.body else [GenerationMode.POSITIVE]
            )
        )
    )


def _machine(workflows: Workflows) -> Any:
    """Return schemathesis' state machine, with requests that go to the app directly instead of over a network."""
    document = _document()
    base = document.as_state_machine()

    class Workflow(base):  # type: ignore[misc, valid-type]
        def setup(self) -> None:
            workflows.begin()
            self.number = 0

        def before_call(self, case: Any) -> None:
            self.number += 1
            label = case.operation.label
            if label == "POST /v1/packages" and self.number % 3 == 1:
                case.body = plain({"mine.py": ""})
            if label in RIGHT and self.number % 3 == 1:
                tags = {"tags": {"number": str(self.number)}} if label in TAGGED else {}
                case.body = {**RIGHT[label], **tags}

        @rule(case=_alone(document))
        def no_answer_leads_to(self, case: Any) -> None:
            self.recorder.record_case(case=case)
            self.before_call(case)
            response = self.call(case)
            self.after_call(response, case)
            self.validate_response(response, case)

        def call(self, case: Any, **_: Any) -> Response:
            key = {} if self.number % 20 == 19 else {"Authorization": f"Bearer {fakes.KEY}"}
            sent = requests.Request(**case.as_transport_kwargs("http://tuner", key)).prepare()
            given = sent.body if isinstance(sent.body, bytes) else (sent.body or "").encode()
            answer = workflows.direct.send(str(sent.method), sent.path_url, sent.headers.items(), given)
            workflows.tried.by_status[answer.status] += 1
            workflows.tried.by_call[case.operation.label] += 1
            headers: dict[str, list[str]] = {}
            for name, value in answer.headers:
                headers.setdefault(name, []).append(value)
            is_packed = answer.header("content-encoding") == "gzip"
            content = gzip.decompress(answer.content) if is_packed else answer.content
            return Response(answer.status, headers, content, sent, 0.001, verify=False)

        def validate_response(self, response: Response, case: Any, *_: Any, **__: Any) -> None:
            case.validate_response(response, checks=CHECKS, recorder=self.recorder)

    return Workflow

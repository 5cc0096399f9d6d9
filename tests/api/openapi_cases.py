"""Requests by the OpenAPI document, in the order in which answers lead to further calls, and answers held to it: by schemathesis."""

import contextlib
import gzip
import itertools
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, seed, settings
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


@schemathesis.serializer("application/zip")
def as_it_is(_: Any, value: Any) -> bytes:
    """Archives as they are drawn: bytes, or text that stands for some."""
    return value if isinstance(value, bytes) else str(getattr(value, "data", value)).encode(errors="replace")


CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
STEPS = settings(
    max_examples=20,
    stateful_step_count=40,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
# Hardly anything that is drawn would be taken, and lead on.
PILOT = fakes.body(planning={"pilot": {"usd": 0.001}})
RIGHT: dict[str, dict[str, Any]] = {
    "POST /v1/jobs": fakes.body(),
    "POST /v1/plans": fakes.body(budget={"usd": 0.0001, "trials": 2}),
    "POST /v1/pilots": PILOT,
    "PUT /v1/budgets/{name}": {"usd": 1000},
    "PUT /v1/quota": {"usd": 1000},
    "PUT /v1/members/{user}": {"role": "viewer"},
    "POST /v1/keys": {"user": "alice", "name": "hers"},
    "POST /v1/projects": {"name": "another"},
}
TAGGED = {"POST /v1/jobs", "POST /v1/pilots"}


class Tried:
    """What was sent, and how it was answered."""

    def __init__(self) -> None:
        self.by_status, self.by_call = Counter[int](), Counter[str]()

    @property
    def cases(self) -> int:
        return self.by_status.total()

    def __str__(self) -> str:
        statuses = ", ".join(f"{count} x {status}" for status, count in sorted(self.by_status.items()))
        return f"{self.cases} cases of {len(self.by_call)} calls: {statuses}; 0 undocumented answers"


class Anew:
    """A service with a member and a job that has run, the same at the beginning of each scenario: what is drawn may depend on nothing
    else."""

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

    def begin(self) -> None:
        self._service.database.dispose()
        for beside in self._file.parent.glob("tuner.db-*"):
            beside.unlink()
        shutil.copyfile(self._kept, self._file)
        self._service.now.at = self._at

    def close(self) -> None:
        self.direct.close()
        self._service.database.dispose()


def documented() -> set[str]:
    """Calls, by method and path."""
    paths = fakes.shared_app().openapi()["paths"]
    return {f"{verb.upper()} {path}" for path, verbs in paths.items() for verb in verbs}


def try_out(folder: Path, cases: int, *, first_seed: int) -> Tried:
    """So many at least. Raises schemathesis' failure for an answer that is not as the document says."""
    tried, seeds = Tried(), itertools.count(first_seed)
    with contextlib.closing(Anew(folder)) as anew:
        workflow = _machine(anew, tried)
        while tried.cases < cases:
            seed(next(seeds))(workflow)
            workflow.run(settings=STEPS)
    return tried


async def at_once(work: Callable[..., Any], *args: Any, **_: Any) -> Any:
    """In place of a thread, which costs a fifth of a request."""
    return work(*args)


def _alone(document: Any) -> Any:
    """Cases of calls that schemathesis leaves out of its scenarios, since no answer leads there or on."""
    operations = [found.ok() for found in document.get_all_operations()]
    known = collect_transitions(operations).operations
    return st.one_of(
        *(
            one.as_strategy(generation_mode=mode)
            for one in operations
            if one.label not in known
            for mode in (list(GenerationMode) if one.query or one.body else [GenerationMode.POSITIVE])
        )
    )


def _machine(anew: Anew, tried: Tried) -> Any:
    """One of schemathesis', whose requests go to the app and not by a network."""
    document = schemathesis.openapi.from_dict(fakes.shared_app().openapi())
    base = document.as_state_machine()

    class Workflow(base):  # type: ignore[misc, valid-type]
        def setup(self) -> None:
            anew.begin()
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
            answer = anew.direct.send(str(sent.method), sent.path_url, sent.headers.items(), given)
            tried.by_status[answer.status] += 1
            tried.by_call[case.operation.label] += 1
            headers: dict[str, list[str]] = {}
            for name, value in answer.headers:
                headers.setdefault(name, []).append(value)
            is_packed = answer.header("content-encoding") == "gzip"
            content = gzip.decompress(answer.content) if is_packed else answer.content
            return Response(answer.status, headers, content, sent, 0.001, verify=False)

        def validate_response(self, response: Response, case: Any, *_: Any, **__: Any) -> None:
            case.validate_response(response, checks=CHECKS, recorder=self.recorder)

    return Workflow

"""Emulate the answers of the metadata services of AWS, Google and Azure to a machine, and how they change when
a notice is given.

Paths, headers, statuses and bodies are those of the vendors' documentation and of their own clients and mocks.
Times are fixed when the notice is given, as in the clouds.
"""

import json
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

XHTML = """<?xml version="1.0" encoding="iso-8859-1"?>
<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Transitional//EN"
 "http://www.w3.org/TR/xhtml1/DTD/xhtml1-transitional.dtd">
<html xmlns="http://www.w3.org/1999/xhtml" xml:lang="en" lang="en">
 <head><title>{0}</title></head>
 <body><h1>{0}</h1></body>
</html>
"""


@dataclass(frozen=True)
class Request:
    """A request to the metadata service. Header names are in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Reply:
    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class Cloud(Protocol):
    def answer(self, request: Request) -> Reply:
        """Answer a request. Several threads call this at the same time."""

    def close(self) -> None:
        """Release the requests that wait for a change."""


class Nowhere:
    """An address that belongs to something else than a cloud."""

    def answer(self, request: Request) -> Reply:
        return Reply(404, b"not found\n", {"Content-Type": "text/plain"})

    def close(self) -> None: ...


class Aws:
    """AWS with IMDSv2 required."""

    TTL, TOKEN = "x-aws-ec2-metadata-token-ttl-seconds", "x-aws-ec2-metadata-token"
    ACTION = "/latest/meta-data/spot/instance-action"
    TIME = "/latest/meta-data/spot/termination-time"

    def __init__(self) -> None:
        self._tokens: dict[str, float] = {}
        self.texts: dict[str, str] = {
            "/latest/meta-data/instance-id": "i-1234567890abcdef0",
            "/latest/meta-data/instance-life-cycle": "spot",
            "/latest/meta-data/placement/availability-zone": "us-east-2a",
            "/latest/meta-data/placement/availability-zone-id": "use2-az1",
            "/latest/dynamic/instance-identity/document": json.dumps(
                {"instanceType": "g6.xlarge", "region": "us-east-2", "availabilityZone": "us-east-2a"}
            ),
            "/latest/meta-data/events/maintenance/scheduled": "[]",
        }

    def interrupt(self, action: str = "terminate", at: str = "2026-04-24T17:11:44Z") -> None:
        self.texts[self.ACTION] = json.dumps({"action": action, "time": at})
        self.texts[self.TIME] = at

    def withdraw(self) -> None:
        for path in (self.ACTION, self.TIME):
            self.texts.pop(path, None)

    def expire_tokens(self) -> None:
        self._tokens.clear()

    def answer(self, request: Request) -> Reply:
        if request.path == "/latest/api/token":
            return self._token(request)
        if time.monotonic() >= self._tokens.get(request.headers.get(self.TOKEN, ""), 0.0):
            return self._page("401 - Unauthorized")
        if request.path not in self.texts:
            return self._page("404 - Not Found")
        kind = "application/json" if self.texts[request.path].startswith("{") else "text/plain"
        return self._reply(200, self.texts[request.path], kind)

    def close(self) -> None: ...

    def _token(self, request: Request) -> Reply:
        if request.method != "PUT":
            return self._page("405 - Not Allowed")
        if "x-forwarded-for" in request.headers:
            return self._page("403 - Forbidden")
        ttl = request.headers.get(self.TTL, "")
        if not ttl.isdecimal() or not 1 <= int(ttl) <= 21600:
            return self._page("400 - Bad Request")
        token = secrets.token_urlsafe(40) + "=="
        self._tokens[token] = time.monotonic() + int(ttl)
        return self._reply(200, token, "text/plain", **{"X-Aws-Ec2-Metadata-Token-Ttl-Seconds": ttl})

    def _page(self, title: str) -> Reply:
        return self._reply(int(title[:3]), XHTML.format(title), "text/html")

    def _reply(self, status: int, body: str, kind: str, **more: str) -> Reply:
        return Reply(status, body.encode(), {"Content-Type": kind, "Server": "EC2ws", **more})


class Gcp:
    """Google's metadata server. Every value has an ETag that changes with it, and a request may wait for a
    change.
    """

    BASE = "/computeMetadata/v1/instance/"

    def __init__(self) -> None:
        self._values = {"preempted": "FALSE", "maintenance-event": "NONE", "id": "4520031799277581759"}
        self._values |= {
            "machine-type": "projects/123/machineTypes/g2-standard-4",
            "zone": "projects/123/zones/us-central1-a",
            "scheduling/preemptible": "FALSE",
        }
        self._etags = {key: secrets.token_hex(8) for key in self._values}
        self._changed = threading.Condition()
        self._over = False

    def say(self, key: str, value: str) -> None:
        """Set a value. Setting the same value again also changes its ETag."""
        with self._changed:
            self._values[key], self._etags[key] = value, secrets.token_hex(8)
            self._changed.notify_all()

    def preempt(self) -> None:
        self.say("preempted", "TRUE")

    def answer(self, request: Request) -> Reply:
        if request.headers.get("metadata-flavor") != "Google" or "x-forwarded-for" in request.headers:
            return self._reply(403, 'Missing required header "Metadata-Flavor": "Google"')
        key = request.path.removeprefix(self.BASE)
        with self._changed:
            if key not in self._values:
                return self._reply(404, "Not found")
            if request.query.get("wait_for_change") == "true":
                known = request.query.get("last_etag") or self._etags[key]
                limit_s = float(request.query.get("timeout_sec", 3600))
                self._changed.wait_for(lambda: self._over or self._etags[key] != known, limit_s)
            return self._reply(200, self._values[key], ETag=self._etags[key])

    def close(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _reply(self, status: int, body: str, **more: str) -> Reply:
        kind = "application/text" if status == 200 else "text/html; charset=UTF-8"
        always = {"Content-Type": kind, "Metadata-Flavor": "Google", "Server": "Metadata Server for VM"}
        return Reply(status, body.encode(), {**always, "X-Frame-Options": "SAMEORIGIN", **more})


class Azure:
    """Azure's events for a scale set. This machine is `worker_3`; others belong to the set, too."""

    NAME = "/metadata/instance/compute/name"
    EVENTS = "/metadata/scheduledevents"

    def __init__(self, machine: str = "worker_3") -> None:
        self.machine = machine
        self.incarnation = 1
        self.events: list[Any] = []
        self.released: list[str] = []

    def schedule(
        self,
        event_id: str = "602d9444-d2cd-49c7-8624-8643e7171297",
        event_type: str = "Preempt",
        *,
        machines: tuple[str, ...] = ("worker_3",),
        not_before: str = "Mon, 19 Sep 2026 18:29:47 GMT",
        status: str = "Scheduled",
    ) -> None:
        """Schedule an event. It replaces an earlier event with the same id."""
        event = {
            "EventId": event_id,
            "EventType": event_type,
            "ResourceType": "VirtualMachine",
            "Resources": list(machines),
            "EventStatus": status,
            "NotBefore": not_before,
            "Description": "",
            "EventSource": "Platform",
            "DurationInSeconds": -1,
        }
        self._become(
            [scheduled_event for scheduled_event in self.events if scheduled_event["EventId"] != event_id]
            + [event]
        )

    def withdraw(self, event_id: str = "602d9444-d2cd-49c7-8624-8643e7171297") -> None:
        self._become([event for event in self.events if event["EventId"] != event_id])

    def answer(self, request: Request) -> Reply:
        if request.headers.get("metadata") != "true":
            return self._refuse("Bad request. Required metadata header not specified")
        if "api-version" not in request.query:
            return self._refuse("Bad request. api-version was not specified in the request")
        if request.path == self.NAME and request.query.get("format") == "text":
            return Reply(200, self.machine.encode(), {"Content-Type": "text/plain; charset=utf-8"})
        if request.path == self.NAME.removesuffix("/name"):
            return self._json(
                200, {"vmSize": "Standard_NC4as_T4_v3", "location": "eastus", "priority": "Spot"}
            )
        if request.path != self.EVENTS:
            return self._json(404, {"error": "Not found"})
        if request.method == "POST":
            return self._start(request.body)
        return self._json(200, {"DocumentIncarnation": self.incarnation, "Events": self.events})

    def close(self) -> None: ...

    def _start(self, body: bytes) -> Reply:
        try:
            wanted = [start_request["EventId"] for start_request in json.loads(body)["StartRequests"]]
        except (ValueError, KeyError, TypeError):
            return self._refuse("Bad request")
        self.released += wanted
        return Reply(200, b"")

    def _become(self, events: list[Any]) -> None:
        self.events, self.incarnation = events, self.incarnation + 1

    def _refuse(self, why: str) -> Reply:
        return self._json(400, {"error": why})

    def _json(self, status: int, body: Mapping[str, Any]) -> Reply:
        headers = {"Content-Type": "application/json; charset=utf-8", "Server": "IMDS/150.870.65.1854"}
        return Reply(status, json.dumps(body).encode(), headers)

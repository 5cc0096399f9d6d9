"""`python -m tests.cli.leaving_program HOME DRAIN_S`: a service over a fake cluster that shuts down as `tuner serve` does.

It prints its port, and a message when everything after the serving is done.
"""

import socket
import sys
import time
from pathlib import Path

from tests import fakes
from tuner.api.app import create_app
from tuner.cli import http_server
from tuner.cli.http_server import GracefulServer
from tuner.service.controller import Controller
from tuner.service.leading import Renewing


def main(home: str, drain_s: str) -> None:
    http_server.ANSWER_S = 240
    service = fakes.service_in(Path(home))
    app = create_app(service)

    @app.get("/slow")
    def slow() -> str:
        print("asked", flush=True)
        time.sleep(1)
        return "answered"

    job = fakes.submit(fakes.client_of(service))
    Controller(service).one_pass()
    leading = Renewing(service.leading)
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    print(listening.getsockname()[1], job, flush=True)
    server = GracefulServer(
        app,
        shutting_down=app.state.shutting_down,
        end_streams=app.state.broadcaster.end,
        drain_s=float(drain_s),
    )
    leading.start()
    server.run(sockets=[listening])
    leading.stop()
    print("over", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

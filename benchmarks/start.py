"""`python -m benchmarks.start`: how long it takes after kill -9 of the service until the next one is ready.

A real `tuner serve` runs with its local Ray, which outlives the kill. As soon as the service is killed, another one is started on the same
port, as a process supervisor does, and `/readyz` is polled until it returns 200. The peer is a bare application of FastAPI and SQLAlchemy
in its own process, which is ready when one request has read a row. The two are measured alternately, in the same run.
"""

import argparse
import http.client
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tuner.cluster.launch import free_ports

HOST = "127.0.0.1"
PEER = """
import sqlalchemy, uvicorn
from fastapi import FastAPI, HTTPException
from sqlalchemy import create_engine, text
app, engine = FastAPI(), create_engine("sqlite:///{database}")
@app.get("/readyz")
def ready():
    with engine.connect() as db:
        return {{"rows": db.execute(text("SELECT count(*) FROM alembic_version")).scalar()}}
uvicorn.run(app, host="127.0.0.1", port={port}, log_level="error")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10)
    count = parser.parse_args().count
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        home, port, peer_port = Path(folder), *free_ports(2)
        environment = {
            **os.environ,
            "TUNER_HOME": folder,
            "TUNER_PORT": str(port),
            "TUNER_CLOUD": "none",
            "TUNER_LOCAL_CPUS": "2",
        }
        tuner = [sys.executable, "-m", "tuner.cli.main"]
        peer = [sys.executable, "-c", PEER.format(database=home / "tuner.db", port=peer_port)]
        ours: list[float] = []
        theirs: list[float] = []
        try:
            service, first = started([*tuner, "serve"], port, environment)
            print(f"a first start, which starts Ray: {first:.1f} s", flush=True)
            for _ in range(count):
                service, seconds = replaced(service, [*tuner, "serve"], port, environment)
                ours.append(seconds)
                other, _ = started(peer, peer_port, environment)
                other, seconds = replaced(other, peer, peer_port, environment)
                theirs.append(seconds)
                ended(other)
            ended(service)
        finally:
            subprocess.run([*tuner, "stop"], env=environment, check=True, stdout=subprocess.DEVNULL)
    report("killed to ready, ours", ours)
    report("killed to ready, a bare FastAPI and SQLAlchemy", theirs)
    print(f"ratio of the medians: {statistics.median(ours) / statistics.median(theirs):.2f}")


def started(
    command: Sequence[str], port: int, environment: dict[str, str]
) -> tuple[subprocess.Popen[bytes], float]:
    """Start the process, wait until it is ready, and return it with the seconds from its start."""
    began = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not answers(port):
            assert process.poll() is None, f"{command} ended with {process.returncode}"
            assert time.perf_counter() - began < 180, f"{command} is not ready"
            time.sleep(0.025)  # each poll also takes CPU time from the starting process
    except BaseException:
        ended(process)
        raise
    return process, time.perf_counter() - began


def replaced(
    process: subprocess.Popen[bytes], command: Sequence[str], port: int, environment: dict[str, str]
) -> tuple[subprocess.Popen[bytes], float]:
    began = time.perf_counter()
    ended(process)
    new_process, _ = started(command, port, environment)
    return new_process, time.perf_counter() - began


def ended(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait()


def answers(port: int) -> bool:
    asked = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        asked.request("GET", "/readyz")
        return asked.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        asked.close()


def report(what: str, seconds: list[float]) -> None:
    ordered = sorted(seconds)
    high = ordered[math.ceil(0.95 * len(ordered)) - 1]
    print(
        f"{what}: n {len(ordered)}, median {statistics.median(ordered):.2f} s, 95 % {high:.2f} s, slowest {ordered[-1]:.2f} s"
    )


if __name__ == "__main__":
    main()

"""A worker of its own for attacks: `python -m tests.hostile.worker_program FOLDER`.

It reads names of attacks, one per line, and prints what became of each as a line of JSON. It is a process of its own because a
supervisor that owns its process kills all other children of it.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from tests.worker.driving import SECOND, Driver
from tuner.driver.messages import ENDED
from tuner.worker.supervisor import Supervisor

ENTRY = "tests.system.user_code.hostile:train"
LEASE_S = 3.0
METRICS_ROOM = 200_000  #: Of three large reports.
WARM_S = 300.0  # for an attempt that waits for the fork server to import torch
#: How much later than the lease's end the result may arrive, and the last process be gone. On a quiet machine it takes 0.02 s.
LATE_S = 2.0


def run(driver: Driver, attack: str, lease_s: float) -> dict[str, Any]:
    """Run an attack with a lease of `lease_s` seconds.

    Return the result, how long the attempt lived as seen from outside, and the processes that are left of it.
    """
    before = len(driver.reports)
    began = time.monotonic()
    driver.begin(config={"attack": attack}, target_step=None, lease_s=lease_s, metrics_room=METRICS_ROOM)
    while True:
        result = driver.supervisor.step()
        driver.reports += result["reports"]
        if result["state"] in ENDED:
            break
    lived_s, gone_by = time.monotonic() - began, time.monotonic() + LATE_S
    while (left := left_over(driver)) and time.monotonic() < gone_by:
        time.sleep(0.02)
    return {
        "state": result["state"],
        "message": (result["error"] or {}).get("message", ""),
        "lived_s": lived_s,
        "billed_s": sum(result["meter"].values()) / SECOND,
        "steps": [report["step"] for report in driver.reports[before:]],
        "left": [str(process) for process in left],
    }


def left_over(driver: Driver) -> list[psutil.Process]:
    """Return the living descendants of this process, except the fork server. This process adopts orphans."""
    return [
        process
        for process in psutil.Process().children(recursive=True)
        if process.pid != driver.supervisor.server.pid and process.status() != psutil.STATUS_ZOMBIE
    ]


def main(folder: Path) -> None:
    supervisor = Supervisor(ENTRY, owns_process=True)
    driver = Driver(folder / "storage", ENTRY, supervisor)
    try:
        for line in sys.stdin:
            if not (supervisor.server.alive and supervisor.server.ready):  # the attack before ended it
                run(driver, "well", WARM_S)
            sys.stdout.write(json.dumps(run(driver, line.strip(), LEASE_S)) + "\n")
            sys.stdout.flush()
    finally:
        supervisor.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

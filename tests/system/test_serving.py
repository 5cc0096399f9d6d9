"""The services of the tests leave no process if they do not become ready."""

from pathlib import Path

import pytest

from tests.system.serving import Served

# Ends its output without having printed an address.
SILENT = "import os, time; os.close(1); time.sleep(300)"


def test_service_that_does_not_become_ready_is_stopped(tmp_path: Path) -> None:
    service = Served(tmp_path)
    service.program = ["-c", SILENT]
    try:
        with pytest.raises(AssertionError, match="''"):
            service.start()
        assert service.process.poll() is not None
        service.stop()  # again, as the fixture does
    finally:
        service.process.kill()
        service.process.wait()


def test_service_that_was_never_started_can_be_stopped(tmp_path: Path) -> None:
    Served(tmp_path).stop()

"""Figures over all jobs."""

from pathlib import Path

from tests import fakes
from tuner.domain.money import FREE
from tuner.service.figures import check_database, figures, has_live_jobs


def test_figures_of_an_empty_service_are_nothing(tmp_path: Path) -> None:
    """With no filter for warnings, so that what is deprecated shows."""
    service = fakes.service_in(tmp_path)
    check_database(service)
    assert not has_live_jobs(service)
    found = figures(service)
    assert (found.jobs, found.trials, found.by_kind) == ({}, {}, {})
    assert (found.posted, found.held, found.started) == (FREE, FREE, 0)

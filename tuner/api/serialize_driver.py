"""The answer about a job's present driver."""

from tuner.schemas.job import Driver
from tuner.service.views import Launch


def driver_of(launch: Launch | None) -> Driver | None:
    """Return the driver, or None if no driver runs the job."""
    if launch is None or launch.state not in ("submitted", "running"):
        return None
    return Driver(
        launch=launch.epoch,
        version=launch.tuner_version,
        ray=launch.ray_version,
        python=launch.python_version,
    )

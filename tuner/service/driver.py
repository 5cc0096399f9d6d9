"""`python -m tuner.service.driver`: the driver of one launch of one job, which finds the prices of machines as the service does."""

import sys

from tuner.engine.landing import Find
from tuner.engine.ray_driver.main import main
from tuner.service.node_prices import finder
from tuner.settings import Settings
from tuner.store.jobs import JobRow


def _finder(settings: Settings, row: JobRow) -> Find:
    return finder(settings, row.offers)


if __name__ == "__main__":
    sys.exit(main(_finder))

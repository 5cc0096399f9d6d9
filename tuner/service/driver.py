"""`python -m tuner.service.driver`: the driver of one launch of one job, which finds the prices of machines as the service does."""

import gc
import sys


def run() -> int:
    """Run the driver and return its exit status."""
    gc.disable()  # until all is imported: a sixth of the processor time of a start
    from tuner.engine.ray_driver.main import main
    from tuner.service.node_prices import finder

    gc.freeze()
    gc.enable()
    return main(lambda settings, row: finder(settings, row.offers))


if __name__ == "__main__":
    sys.exit(run())

"""`python -m tuner.service.driver`: the driver of one launch of a job, with machines priced as the service prices them."""

import gc
import sys


def run() -> int:
    """Run the driver and return its exit status."""
    gc.disable()  # no garbage collection until everything is imported: this saves a sixth of the CPU time of a start
    from tuner.driver.main import main
    from tuner.service.node_prices import finder

    gc.freeze()
    gc.enable()
    return main(lambda settings, row: finder(settings, row.offers))


if __name__ == "__main__":
    sys.exit(run())

"""Tests of the import of Ray Tune, in a process that has not imported it yet."""

import subprocess
import sys

SCRIPT = """
import sys
import tuner.driver.main, tuner.driver.ray_tune
assert not {"pandas", "ray.data"} & sys.modules.keys()

from tuner.domain.job import Resources
from tuner.driver.tuning_run import _placement
request = _placement(Resources(cpus=2, gpus=1, nodes=2), {"labels": [["market", "spot"]]})
assert request.bundles == [{"CPU": 2, "GPU": 1}] * 2
assert request.strategy == "STRICT_SPREAD"
assert request._kwargs == {"bundle_label_selector": [{"market": "spot"}] * 2}

from ray.tune.impl import out_of_band_serialize_dataset
from ray.tune.analysis import experiment_analysis
assert experiment_analysis.pd.DataFrame([1]).size == 1
assert "pandas" in sys.modules

import ray, ray.data, pandas
assert ray.data.Dataset.__module__ == "ray.data.dataset" and pandas.DataFrame([1]).size == 1
"""


def test_driver_reserves_nodes_together_and_imports_ray_data_and_pandas_only_once_they_are_used() -> None:
    """The nodes of a trial are reserved on machines of one kind."""
    subprocess.run([sys.executable, "-c", SCRIPT], check=True)

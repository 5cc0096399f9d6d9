"""Tests of the import of Ray Tune, in a process that has not imported it yet."""

import subprocess
import sys

SCRIPT = """
import sys
import tuner.driver.main, tuner.driver.ray_tune
assert not {"pandas", "ray.data"} & sys.modules.keys()

from ray.tune.impl import out_of_band_serialize_dataset
from ray.tune.analysis import experiment_analysis
experiment_analysis.pd.Series
assert "pandas" in sys.modules

import ray, ray.data, pandas
assert ray.data.Dataset.__module__ == "ray.data.dataset" and pandas.DataFrame([1]).size == 1
"""


def test_driver_imports_ray_data_and_pandas_only_once_they_are_used() -> None:
    subprocess.run([sys.executable, "-c", SCRIPT], check=True)

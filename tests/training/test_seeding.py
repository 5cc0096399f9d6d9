"""Test `seed_everything` in a new process, where no library is imported yet."""

import subprocess
import sys

PROGRAM = """
import sys
from tuner.training import seed_everything

seed_everything(5)
seed_everything(3, threads=1)
assert not {"numpy", "torch"} & sys.modules.keys(), "nothing is imported only to be seeded"
import numpy, torch

drawn = float(numpy.random.rand()), float(torch.rand(1))
seed_everything(3)
assert drawn == (float(numpy.random.rand()), float(torch.rand(1)))
assert torch.get_num_threads() == 1
"""


def test_libraries_are_seeded_when_they_are_imported() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

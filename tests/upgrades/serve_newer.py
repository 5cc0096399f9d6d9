"""`python tests/upgrades/serve_newer.py FOLDER migrate|serve`: run a command of the fictitious newer version."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.upgrades import made_up
from tuner.cli.main import app

if __name__ == "__main__":
    with made_up.known(Path(sys.argv[1])):
        app(sys.argv[2:])

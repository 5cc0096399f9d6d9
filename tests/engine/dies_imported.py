"""Takes its process with it when it is imported."""

import os

os._exit(3)

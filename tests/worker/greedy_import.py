"""A module that prints a lot and allocates 900 MB when it is imported. The amount does no harm to the machine."""

import os
import time

for _ in range(100):
    os.write(1, b"printed as it is imported\n")
eaten = [bytearray(os.urandom(1 << 20) * 30) for _ in range(30)]
time.sleep(1000)

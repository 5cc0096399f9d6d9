"""Prints much when it is imported, and takes 900 MB, which does no harm to the machine."""

import os
import time

for _ in range(100):
    os.write(1, b"printed as it is imported\n")
eaten = [bytearray(os.urandom(1 << 20) * 30) for _ in range(30)]
time.sleep(1000)

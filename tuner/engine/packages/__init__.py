"""Uploaded packages of user code: check them, store them by digest, and unpack them on the machine that uses them."""

"""Files in shared storage: checkpoints, their chunks, and the logs of attempts."""

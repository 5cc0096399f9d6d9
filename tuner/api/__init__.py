"""The REST interface. It translates between JSON and the use cases of `tuner.service`, and does nothing else."""

"""The REST face: translates between words on the wire and use cases, and does nothing else."""

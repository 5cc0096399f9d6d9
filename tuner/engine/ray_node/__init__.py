"""Notify Ray, and everything that runs there, that a node of a Ray cluster is about to be taken away.

`telling` does so from anywhere in the cluster. `python -m tuner.engine.ray_node.watch` watches for notices on the
node itself.
"""

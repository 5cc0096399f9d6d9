"""A node of a Ray cluster that is about to be taken away: Ray is told, and all that runs there.

`telling` says so from anywhere in the cluster; `python -m tuner.engine.ray_node.watch` listens on the node itself.
"""

"""A node of a Ray cluster that is about to be taken away: Ray is told, and all that runs there.

`tell` says so from any process of the cluster; `python -m tuner.engine.ray_node.watch` listens on the node itself.
"""

"""The Ray cluster that jobs run on: a local head that is kept alive, or an existing cluster.

Nothing here imports Ray. The service talks to a cluster through its dashboard's HTTP interface, and starts a local
one as a process.
"""

from tuner.engine.ray_cluster.cluster_file import ClusterFile, KeptCluster, KeptNode
from tuner.engine.ray_cluster.dashboard import Dashboard, RayUnavailable, cluster_token, dashboard_url
from tuner.engine.ray_cluster.head import Head, LocalHead
from tuner.engine.ray_cluster.jobs import JobStatus, RayJobs, money_metadata
from tuner.engine.ray_cluster.labels import Market
from tuner.engine.ray_cluster.local_cluster import LocalCluster
from tuner.engine.ray_cluster.local_node import NodeSpec
from tuner.engine.ray_cluster.local_watch import LocalWatch, Metadata
from tuner.engine.ray_cluster.node_types import NodeTypes, node_types_of
from tuner.engine.ray_cluster.nodes import Node, fits, nodes
from tuner.engine.ray_cluster.versions import RayUnfit, misfit, ray_of

__all__ = [
    "ClusterFile",
    "Dashboard",
    "Head",
    "JobStatus",
    "KeptCluster",
    "KeptNode",
    "LocalCluster",
    "LocalHead",
    "LocalWatch",
    "Market",
    "Metadata",
    "Node",
    "NodeSpec",
    "NodeTypes",
    "RayJobs",
    "RayUnavailable",
    "RayUnfit",
    "cluster_token",
    "dashboard_url",
    "fits",
    "misfit",
    "money_metadata",
    "node_types_of",
    "nodes",
    "ray_of",
]

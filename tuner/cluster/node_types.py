"""Read from an autoscaler's configuration which machines the autoscaler may start.

The configuration is a cluster file of Ray's launcher, or KubeRay's RayCluster. It is needed because the interfaces of Ray
2.60 show only which nodes exist, not which ones the autoscaler may start.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from tuner.cluster import nodes as its
from tuner.cluster.nodes import NODES_MAX, Node
from tuner.domain.errors import BadFile
from tuner.domain.offer import WorkerMachine

# The label with the node type, which Ray sets on each node that its autoscaler started.
GROUP = "ray.io/node-group"
# Ray's default if a cluster file omits `max_workers`.
MAX_WORKERS = 2
_UNITS = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


@dataclass(frozen=True, slots=True)
class NodeType:
    """A type of worker node that an autoscaler may start."""

    name: str
    cpus: float
    gpus: float
    memory_bytes: int
    at_most: int  #: How many machines of this type may exist at once.
    labels: Mapping[str, str] = field(default_factory=dict)

    def is_one(self, labels: Mapping[str, str], cpus: float, gpus: float) -> bool:
        """Return whether an existing machine with these labels, CPUs and GPUs is of this type."""
        if GROUP in labels:
            return labels[GROUP] == self.name
        same = all(labels.get(name) == value for name, value in self.labels.items())
        return same and cpus == self.cpus and gpus == self.gpus


@dataclass(frozen=True, slots=True)
class NodeTypes:
    """The types of worker nodes that an autoscaler may start. `at_most` limits the total number of workers, over all types."""

    types: tuple[NodeType, ...] = ()
    at_most: int = 0

    def startable(self, there: Iterable[tuple[Mapping[str, str], float, float]]) -> list[NodeType]:
        """Return the type of each machine that may still be started. If two machines of a type may be started, the type occurs twice.

        `there` has the labels, CPUs and GPUs of each existing worker node. The machines of one type never exceed the limit of their type,
        nor the number that the limit for all types together (`at_most`) still allows. But the machines of several types together may
        exceed that number, because the autoscaler may start the remaining machines from any of the types.
        """
        left, workers = {node_type.name: node_type.at_most for node_type in self.types}, 0
        for labels, cpus, gpus in there:
            workers += 1
            own = next((t for t in self.types if left[t.name] and t.is_one(labels, cpus, gpus)), None)
            if own is not None:
                left[own.name] -= 1
        room = max(0, self.at_most - workers)
        return [node_type for node_type in self.types for _ in range(min(left[node_type.name], room))]

    def nodes_to_come(self, there: Iterable[Node]) -> list[Node]:
        """Return a `Node` for each machine that may still be started in addition to the existing nodes, which are `there`.

        The returned nodes are not alive and have no id.
        """
        workers = ((node.labels, node.cpus, node.gpus) for node in there if node.alive and not node.is_head)
        return [
            Node(
                "",
                node_type.cpus,
                node_type.gpus,
                node_type.memory_bytes,
                node_type.labels,
                alive=False,
                name=node_type.name,
            )
            for node_type in self.startable(workers)
        ]

    def machines_to_come(self, workers: Sequence[WorkerMachine]) -> list[WorkerMachine]:
        startable_types = self.startable(
            (node_type.labels, node_type.cpus, node_type.gpus) for node_type in workers
        )
        return [
            WorkerMachine(node_type.labels, node_type.cpus, node_type.gpus, to_come=True)
            for node_type in startable_types
        ]

    def text(self) -> str:
        """Return the types as a cluster file of Ray's launcher. It is written as JSON, which is also valid YAML."""
        types = {
            node_type.name: {
                "max_workers": node_type.at_most,
                "resources": {"CPU": node_type.cpus, "GPU": node_type.gpus, "memory": node_type.memory_bytes},
                "labels": dict(node_type.labels),
            }
            for node_type in self.types
        }
        return json.dumps({"max_workers": self.at_most, "available_node_types": types})


NOTHING = NodeTypes()
SETTING = "TUNER_NODE_TYPES"


def node_types_of(setting: str) -> NodeTypes:
    """Return the node types from the value of `TUNER_NODE_TYPES`: the path of a configuration file, or a text made by `NodeTypes.text`.

    Raise BadFile if the file cannot be read, or if its content or the text is invalid.
    """
    if not setting:
        return NOTHING
    if setting.startswith("{"):
        return read_node_types(setting, SETTING)
    path = Path(setting)
    try:
        return read_node_types(path.read_text(encoding="utf-8"), f"{SETTING}: {path}")
    except OSError as error:
        raise BadFile(f"{SETTING}: {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadFile(f"{SETTING}: {path} is not text in UTF-8") from error


# The result is cached, because offers are priced often and parsing takes milliseconds.
@lru_cache(maxsize=4)
def read_node_types(text: str, name: str) -> NodeTypes:
    """Return the node types from a cluster file of Ray's launcher, or from the RayClusters in a file of Kubernetes objects.

    A RayCluster without `enableInTreeAutoscaling` has a fixed size, so the result has no types for it.

    Args:
        text: The YAML text.
        name: What error messages call the text.

    Raises:
        BadFile: The text is invalid. The error names the field and how to fix it.
    """
    try:
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # PyYAML does not wrap Python's own errors
        raise BadFile(f"{name} is not YAML: {str(error).splitlines()[0]}") from error
    objects = [
        each for top in documents for each in (top.get("items") or [top] if isinstance(top, dict) else [top])
    ]
    reader = _Reader(name)
    for each in objects:
        if isinstance(each, dict) and "available_node_types" in each:
            return reader.of_launcher(each)
    clusters = [each for each in objects if isinstance(each, dict) and each.get("kind") == "RayCluster"]
    if not clusters:
        raise BadFile(
            f"{name} has neither available_node_types, as Ray's cluster files do, nor an object of kind RayCluster: "
            "name the configuration file of the cluster's autoscaler"
        )
    types = [node_type for cluster in clusters for node_type in reader.of_kuberay(cluster)]
    return NodeTypes(tuple(types), sum(node_type.at_most for node_type in types))


@dataclass(frozen=True, slots=True)
class _Reader:
    name: str

    def of_launcher(self, config: Mapping[str, Any]) -> NodeTypes:
        at_most = self._count(config.get("max_workers", MAX_WORKERS), "max_workers")
        listed = self._mapping(config["available_node_types"], "available_node_types")
        types = []
        for kind, given in listed.items():
            where = f"available_node_types.{kind}"
            node_type = self._mapping(given, where)
            # For the head's type, Ray's default is 0: it starts no workers of this type unless `max_workers` is set.
            usual = 0 if kind == config.get("head_node_type") else at_most
            count = self._count(node_type.get("max_workers", usual), f"{where}.max_workers")
            if not count:
                continue
            has = self._mapping(node_type.get("resources") or {}, f"{where}.resources")
            if "CPU" not in has:
                fix = "is missing: write how many CPUs of such a machine Ray may use, such as resources: {CPU: 4}"
                raise self._bad(f"{where}.resources.CPU", fix)
            size = [
                self._amount(has.get(name, 0), f"{where}.resources.{name}")
                for name in ("CPU", "GPU", "memory")
            ]
            labels = self._labels(node_type.get("labels") or {}, f"{where}.labels")
            types.append(NodeType(str(kind), size[0], size[1], int(size[2]), count, labels))
        return NodeTypes(tuple(types), at_most)

    def of_kuberay(self, cluster: Mapping[str, Any]) -> list[NodeType]:
        spec = self._mapping(cluster.get("spec"), "spec")
        if not spec.get("enableInTreeAutoscaling"):
            return []
        groups = spec.get("workerGroupSpecs") or []
        if not isinstance(groups, list):
            raise self._bad("spec.workerGroupSpecs", "must be a list of groups")
        node_types = [self._group(group, f"spec.workerGroupSpecs[{i}]") for i, group in enumerate(groups)]
        return [node_type for node_type in node_types if node_type.at_most]

    def _group(self, given: object, where: str) -> NodeType:
        group = self._mapping(given, where)
        count = self._count(group.get("maxReplicas"), f"{where}.maxReplicas")
        hosts = self._count(group.get("numOfHosts", 1), f"{where}.numOfHosts")
        amounts = self._of_pod(group, where)
        if "CPU" not in amounts:
            fix = (
                "is missing: set a CPU limit for the Ray container, because Ray's autoscaler reads the limit"
            )
            raise self._bad(f"{where}.template.spec.containers[0].resources.limits.cpu", fix)
        labels = self._labels(group.get("labels") or {}, f"{where}.labels")
        # Round up, as Ray's autoscaler does.
        cpus, gpus = (math.ceil(amounts.get(name, 0)) for name in ("CPU", "GPU"))
        kind = str(group.get("groupName") or where)
        return NodeType(kind, cpus, gpus, int(amounts.get("memory", 0)), count * hosts, labels)

    def _of_pod(self, group: Mapping[str, Any], where: str) -> dict[str, float]:
        """Return the resources of a pod of a worker group, by Ray's names.

        As in Ray's autoscaler, the amount of a resource comes from the first of these places that names the resource: the group's
        `resources`, Ray's start parameters, the container's limits, the container's requests.
        """
        here = f"{where}.template.spec.containers[0].resources"
        try:
            pod = group["template"]["spec"]["containers"][0].get("resources") or {}
        except (KeyError, IndexError, TypeError, AttributeError):
            raise self._bad(
                f"{where}.template.spec.containers", "has no container: add the Ray container"
            ) from None
        start = self._mapping(group.get("rayStartParams") or {}, f"{where}.rayStartParams")
        sources = [(here, pod.get("requests") or {}), (here, pod.get("limits") or {})]
        pod_resources: dict[str, float] = {}
        for source, amounts in sources:
            for name, amount in self._mapping(amounts, source).items():
                word = {"cpu": "CPU", "memory": "memory"}.get(name, "GPU" if name.endswith("gpu") else "")
                if word:
                    pod_resources[word] = self._amount(amount, f"{source}.{name}")
        for name, word in (("num-cpus", "CPU"), ("num-gpus", "GPU"), ("memory", "memory")):
            if name in start:
                pod_resources[word] = self._amount(start[name], f"{where}.rayStartParams.{name}")
        resources = self._mapping(group.get("resources") or {}, f"{where}.resources")
        given = {
            name: self._amount(resources[name], f"{where}.resources.{name}")
            for name in resources
            if name in ("CPU", "GPU", "memory")
        }
        return {**pod_resources, **given}

    def _mapping(self, given: object, where: str) -> Mapping[str, Any]:
        if not isinstance(given, dict):
            raise self._bad(where, "must be a mapping of names to values")
        return given

    def _count(self, given: object, where: str) -> int:
        if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= NODES_MAX:
            raise self._bad(where, f"must be a whole number from 0 to {NODES_MAX}, not {given!r}")
        return given

    def _amount(self, given: object, where: str) -> float:
        """Return the amount of a resource as a number. `given` is a number or a Kubernetes quantity, such as 500m or 12Gi.

        `where` names the field for the error message.
        """
        text = str(given).strip()
        unit = next((suffix for suffix in (*_UNITS, "m") if text.endswith(suffix)), "")
        try:
            number = float(text[: len(text) - len(unit)])
        except ValueError:
            number = -1
        if isinstance(given, bool) or not math.isfinite(number) or number < 0:
            raise self._bad(where, f"must be an amount such as 4 or 12Gi, not {given!r}")
        return number / 1000 if unit == "m" else number * _UNITS.get(unit, 1)

    def _labels(self, given: object, where: str) -> dict[str, str]:
        labels = self._mapping(given, where)
        for name, value in labels.items():
            if not isinstance(value, str):
                raise self._bad(f"{where}.{name}", f'must be text: write "{value}" in quotes')
        price_text = labels.get(its.PRICE)
        if price_text is not None and its.usd_per_hour(labels) is None:
            raise self._bad(
                f"{where}.{its.PRICE}",
                f"must be a price in dollars per hour, such as 0.0948, not {price_text!r}",
            )
        return dict(labels)

    def _bad(self, where: str, fix: str) -> BadFile:
        return BadFile(f"{self.name}: {where} {fix}")

"""Validate manifests against definitions of custom resources, as strictly as Kubernetes does with strict
validation.

    kubectl get crd rayclusters.ray.io -o yaml > rayclusters.yaml    # or the file of a KubeRay release
    kubectl kustomize deploy/kubernetes/overlays/trial | python -m tools.crds rayclusters.yaml

Prints each error with its path. The exit status is 1 if there is an error, and 2 if no manifest is of a defined
kind. Rules in CEL (`x-kubernetes-validations`) are not checked.
Structural schemas: https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft4Validator, ValidationError
from jsonschema.validators import extend

Schema = dict[str, Any]
Manifest = dict[str, Any]

TEXT = {"type": "string"}
OF_A_RESOURCE = {"apiVersion": TEXT, "kind": TEXT, "metadata": {"type": "object"}}


def strict(schema: Schema, *, resource: bool = False) -> Schema:
    """Return a structural schema as a strict JSON Schema, which refuses unknown fields instead of dropping
    them.

    Schemas within `anyOf` and the like constrain only values, so they are left unchanged.
    """
    made = {word: value for word, value in schema.items() if word != "x-kubernetes-validations"}
    made["properties"] = {name: strict(one) for name, one in schema.get("properties", {}).items()}
    if resource or schema.get("x-kubernetes-embedded-resource"):
        made["properties"] |= OF_A_RESOURCE
    for word in ("items", "additionalProperties"):
        if isinstance(schema.get(word), dict):
            made[word] = strict(schema[word])
    if schema.get("x-kubernetes-int-or-string"):
        made["type"] = ["integer", "string"]
    elif schema.get("type") == "object" and not schema.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    if schema.get("nullable"):
        made |= {"type": [made["type"], "null"]} if isinstance(made.get("type"), str) else {}
        made |= {"enum": [*schema["enum"], None]} if "enum" in schema else {}
    return made


def each_once(_: Any, kind: str, found: Any, schema: Schema) -> Iterator[ValidationError]:
    """Yield an error if a list that is a set, or a map by some fields of its items, has a duplicate."""
    if kind not in ("set", "map") or not isinstance(found, list):
        return
    names = schema.get("x-kubernetes-list-map-keys", [])
    seen = set()
    for place, one in enumerate(found):
        known = {name: one.get(name) for name in names} if kind == "map" and isinstance(one, dict) else one
        key = json.dumps(known, sort_keys=True)
        if key in seen:
            yield ValidationError(f"{key} is there twice", path=[place])
        seen.add(key)


Strictly = extend(Draft4Validator, {"x-kubernetes-list-type": each_once})


def faults(one: Manifest, definition: Manifest) -> list[str]:
    """Return the errors of a manifest against its definition, each with its path."""
    spec = definition["spec"]
    served = {
        f"{spec['group']}/{version['name']}": version for version in spec["versions"] if version["served"]
    }
    if one["apiVersion"] not in served:
        return [f"$.apiVersion: {one['apiVersion']} is not served: {', '.join(served)} are"]
    schema = strict(served[one["apiVersion"]]["schema"]["openAPIV3Schema"], resource=True)
    found = Strictly(schema).iter_errors(one)
    return [f"{error.json_path}: {error.message}" for error in sorted(found, key=lambda e: e.json_path)]


def defined(one: Manifest, definitions: list[Manifest]) -> Manifest | None:
    """Return the definition with the manifest's group and kind, or None."""
    group = one["apiVersion"].rpartition("/")[0]
    for definition in definitions:
        spec = definition["spec"]
        if (spec["group"], spec["names"]["kind"]) == (group, one["kind"]):
            return definition
    return None


def main(definitions: list[Manifest], manifests: list[Manifest]) -> int:
    held = [(one, by) for one in manifests if (by := defined(one, definitions)) is not None]
    wrong = 0
    for one, by in held:
        said = faults(one, by)
        wrong += len(said)
        sys.stdout.write(f"{one['kind']} {one['metadata']['name']}: {len(said)} faults\n")
        sys.stdout.writelines(f"  {line}\n" for line in said)
    if not held:
        sys.stderr.write("no manifest is of a kind that is defined there\n")
    return 2 if not held else int(wrong > 0)


def read(text: str) -> list[Manifest]:
    """Return all manifests. kubectl puts several objects into a List, which is expanded."""
    found = [one for one in yaml.safe_load_all(text) if one]
    return [inner for one in found for inner in (one["items"] if one["kind"] == "List" else [one])]


if __name__ == "__main__":
    given = [one for path in sys.argv[1:] for one in read(Path(path).read_text())]
    sys.exit(main(given, read(sys.stdin.read())))

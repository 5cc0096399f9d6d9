"""The validator of custom resources refuses the same manifests as Kubernetes, and reports the path of each error."""

import copy
import io
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tools.crds import faults, main, read

# A definition with every construct that those of KubeRay and of the Prometheus operator use.
DEFINITION = yaml.safe_load("""
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: farms.example.com}
spec:
  group: example.com
  names: {kind: Farm}
  versions:
    - name: v1
      served: true
      schema:
        openAPIV3Schema:
          type: object
          required: [spec]
          properties:
            apiVersion: {type: string}
            kind: {type: string}
            metadata: {type: object}
            spec:
              type: object
              required: [owner]
              x-kubernetes-validations: [{rule: self.owner == oldSelf.owner}]
              properties:
                owner: {type: string, enum: [us, them], nullable: true}
                port: {anyOf: [{type: integer}, {type: string}], x-kubernetes-int-or-string: true}
                limits: {type: object, additionalProperties: {pattern: '^[0-9]+Gi$', type: string}}
                free: {type: object, x-kubernetes-preserve-unknown-fields: true}
                closed: {type: object}
                inner:
                  type: object
                  x-kubernetes-embedded-resource: true
                  properties: {spec: {type: object, properties: {size: {type: integer, minimum: 1}}}}
                fields:
                  type: array
                  x-kubernetes-list-type: map
                  x-kubernetes-list-map-keys: [name]
                  items: {type: object, required: [name], properties: {name: {type: string}, crop: {type: string}}}
                tags: {type: array, x-kubernetes-list-type: set, items: {type: string}}
    - {name: v1alpha1, served: false, schema: {}}
""")
FARM = yaml.safe_load("""
apiVersion: example.com/v1
kind: Farm
metadata: {name: ours, labels: {a: b}}
spec:
  owner: us
  port: http
  limits: {memory: 4Gi}
  free: {whatever: {is: there}}
  inner: {apiVersion: v1, kind: Barn, metadata: {name: big}, spec: {size: 3}}
  fields: [{name: north, crop: rye}, {name: south}]
  tags: [a, b]
""")


def changed(path: tuple[str | int, ...], value: Any) -> Any:
    found: Any = copy.deepcopy(FARM)
    inner = found
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return found


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "owner"), None),
        (("spec", "port"), 8080),
        (("spec", "limits", "disk"), "1Gi"),
        (("spec", "free", "more"), [1]),
        (("metadata", "annotations"), {"a": "b"}),
    ],
)
def test_valid_changes_are_accepted(path: tuple[str | int, ...], value: Any) -> None:
    assert faults(FARM, DEFINITION) == []
    assert faults(changed(path, value), DEFINITION) == []


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("spec", "owner"), "you", "$.spec.owner: 'you' is not one of"),
        (("spec", "port"), 1.5, "$.spec.port: 1.5 is not"),
        (("spec", "limits", "memory"), "4G", "$.spec.limits.memory: '4G' does not match"),
        (("spec", "limits", "memory"), None, "$.spec.limits.memory: None is not of type 'string'"),
        (("spec", "closed"), {"a": 1}, "$.spec.closed: Additional properties are not allowed ('a' was"),
        (("spec", "inner", "spec", "size"), 0, "$.spec.inner.spec.size: 0 is less than"),
        (("spec", "inner", "spec", "sise"), 1, "$.spec.inner.spec: Additional properties"),
        (("spec", "inner", "data"), 1, "$.spec.inner: Additional properties"),
        (("spec", "fields", 1), {"crop": "oats"}, "$.spec.fields[1]: 'name' is a required property"),
        (("spec", "fields", 1), {"name": "north"}, '$.spec.fields[1]: {"name": "north"} is there twice'),
        (("spec", "tags", 1), "a", '$.spec.tags[1]: "a" is there twice'),
        (("status",), {}, "$: Additional properties"),
        (("apiVersion",), "example.com/v1alpha1", "$.apiVersion: example.com/v1alpha1 is not served"),
    ],
)
def test_each_error_is_reported_with_its_path(path: tuple[str | int, ...], value: Any, said: str) -> None:
    found = faults(changed(path, value), DEFINITION)
    assert any(one.startswith(said) for one in found), found


def test_missing_required_field_is_reported() -> None:
    without = copy.deepcopy(FARM)
    del without["spec"]["owner"]
    assert faults(without, DEFINITION) == ["$.spec: 'owner' is a required property"]


CLOSED: list[tuple[str | int, ...]] = [(), ("spec",), ("spec", "inner", "spec"), ("spec", "fields", 0)]
NAMES = st.text("abcdefghijklmnopqrstuvwxyz", min_size=9, max_size=12)


@given(st.sampled_from(CLOSED), NAMES, st.none() | st.integers() | st.dictionaries(NAMES, st.text()))
def test_unknown_field_is_refused(path: tuple[str | int, ...], name: str, value: Any) -> None:
    (said,) = faults(changed((*path, name), value), DEFINITION)
    assert f"'{name}'" in said


@pytest.mark.parametrize(
    ("manifests", "status", "said"),
    [
        ([FARM, {"apiVersion": "v1", "kind": "Pod"}], 0, "Farm ours: 0 faults\n"),
        ([changed(("spec", "owner"), "you"), FARM], 1, "Farm ours: 1 faults\n  $.spec.owner: 'you'"),
        ([{"apiVersion": "v1", "kind": "Farm"}], 2, ""),
    ],
)
def test_command_prints_faults_and_exits_with_a_status(
    manifests: list[Any], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([DEFINITION], manifests) == status
    assert capsys.readouterr().out.startswith(said)


def test_definitions_are_read_from_release_files_and_kubectl_lists() -> None:
    text = io.StringIO()
    yaml.safe_dump_all([DEFINITION, {"kind": "List", "items": [DEFINITION]}], text)
    assert read("---\n" + text.getvalue()) == [DEFINITION, DEFINITION]

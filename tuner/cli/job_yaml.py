"""YAML as people write jobs: 1e-4 is a number, as in YAML 1.2, where PyYAML's 1.1 has it as text."""

import re

import yaml


class JobYaml(yaml.SafeLoader):
    """The safe loader; only numbers with exponents differ."""


JobYaml.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+"),
    list("-+0123456789."),
)

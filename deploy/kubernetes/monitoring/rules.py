"""Write the rules of deploy/prometheus/rules as a PrometheusRule manifest into this directory."""

from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
RULES = HERE.parents[1] / "prometheus" / "rules"
SAYS = "# Generated from deploy/prometheus/rules. Change those files, then run: python deploy/kubernetes/monitoring/rules.py\n"


def manifest() -> dict[str, Any]:
    """Return the PrometheusRule, a resource of the Prometheus operator."""
    files = [yaml.safe_load(path.read_text()) for path in sorted(RULES.glob("*.yml"))]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "tuner", "labels": {"app.kubernetes.io/name": "tuner"}},
        "spec": {"groups": [group for file in files for group in file["groups"]]},
    }


if __name__ == "__main__":
    made = yaml.safe_dump(manifest(), sort_keys=False, width=1000)
    (HERE / "prometheus-rule.yaml").write_text(SAYS + made)

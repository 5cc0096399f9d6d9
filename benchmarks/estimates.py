"""`python -m benchmarks.estimates`: milliseconds of an estimate over the whole catalogue, from the request's body to the response's."""

import argparse
import gc
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tests import fakes

MODEL = {
    "parameters": 1.3e9,
    "precision": "bf16",
    "batch": 8,
    "layers": 24,
    "hidden": 2048,
    "heads": 16,
    "sequence": 2048,
    "vocabulary": 50257,
    "flash_attention": True,
}
RUN = {"tokens": 2e10, "gpus": "all", "deadline": "5d", "model": MODEL}
BODIES: dict[str, Any] = {
    "measured": {"run": {"samples": 1e8, "throughput": [{"per_second": 850, "accelerator": "A10G"}]}},
    "by FLOPs, with memory": {"run": RUN},
    "everything": {
        "run": RUN,
        "scaling": {"accelerator": "H100", "parameters": 1.3e9, "step_seconds": 0.3, "hours_on_one": 500},
        "compute_optimal": {"usd": 1000, "accelerator": "A100"},
        "recurring": {"runs_per_month": 4},
        "ownership": {
            "purchase_usd": 250_000,
            "watts": 10_200,
            "usd_per_kwh": 0.15,
            "utilisation": 0.6,
            "accelerator": "H100",
            "gpus": 8,
        },
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=50)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        client = fakes.client_of(fakes.service_in(Path(folder)))
        for name, body in BODIES.items():
            gc.freeze()  # the service does this, too
            estimate, taken_ms = client.post("/v1/estimates", json=body).json(), []
            for _ in range(repeats):
                began = time.perf_counter()
                client.post("/v1/estimates", json=body).raise_for_status()
                taken_ms.append((time.perf_counter() - began) * 1e3)
            best = estimate["run"]["cheapest"]
            summary = {
                "estimate": name,
                "median_ms": round(statistics.median(taken_ms), 1),
                "p95_ms": round(statistics.quantiles(taken_ms, n=20)[-1], 1),
                "candidates": estimate["run"]["count"],
                "cheapest": [
                    best["instance_type"],
                    best["region"],
                    best["market"],
                    best["hours"],
                    best["usd"],
                ],
            }
            print(json.dumps(summary))


if __name__ == "__main__":
    main()

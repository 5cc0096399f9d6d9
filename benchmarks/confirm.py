"""`python -m benchmarks.confirm`: check how often the configuration that a confirmation chooses is really the better one.

`tuner.tuning.confirm` gives a confidence for its choice; it should match the measured share. Each configuration has a true mean, drawn from
a normal distribution of deviation 1. Each seed adds normal noise. The configurations with the best single results are confirmed. No
training is simulated.
"""

import argparse
from itertools import pairwise
from random import Random
from statistics import fmean

from tuner.tuning.confirm import confidence, kept

CONFIGS, CANDIDATES = 100, 3
PARTS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.01)


def confirmed(rng: Random, noise: float, seeds: int) -> tuple[float, bool]:
    """Return the confidence that the chosen configuration is better than the runner-up, and whether it is."""
    configs = [(mean, rng.gauss(mean, noise)) for mean in (rng.gauss(0, 1) for _ in range(CONFIGS))]
    configs.sort(key=lambda config: -config[1])
    candidates = [(mean, [first]) for mean, first in configs[:CANDIDATES]]
    for seed in range(1, seeds):
        candidates.sort(key=lambda candidate: -fmean(candidate[1]))
        for mean, scores in candidates[: kept(CANDIDATES, seed)]:
            scores.append(rng.gauss(mean, noise))
    candidates.sort(key=lambda candidate: -fmean(candidate[1]))
    return confidence([scores for _, scores in candidates], 0, 1), candidates[0][0] > candidates[1][0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    args = parser.parse_args()
    print(
        "| noise | seeds | all | "
        + " | ".join(f"{low:g} to {min(1, high):g}" for low, high in pairwise(PARTS))
    )
    for seeds in (3, 5):
        for noise in (0.1, 0.3, 1.0):
            rng = Random(0)
            runs = [confirmed(rng, noise, seeds) for _ in range(args.runs)]
            parts = [runs] + [[run for run in runs if low <= run[0] < high] for low, high in pairwise(PARTS)]
            cells = (
                f"{fmean(sure for sure, _ in part):.3f}, {fmean(right for _, right in part):.3f}"
                for part in parts
            )
            print(f"| {noise:g} | {seeds} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()

"""A training script with command-line options. It imports nothing of the service."""

import argparse
import json
import os
import random
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--epochs", type=int, default=27)
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()

checkpoint = Path(os.environ.get("TUNER_CHECKPOINT_DIR", ".")) / "state.json"
weight, epoch = 5.0, 0
if checkpoint.exists():
    weight, epoch = json.loads(checkpoint.read_text())

while epoch < options.epochs:
    noise = random.Random(f"{options.seed}/{epoch}").gauss(0, 0.1)
    time.sleep(0.05)  # train here
    weight -= options.lr * (2 * weight + noise)
    epoch += 1
    checkpoint.write_text(json.dumps([weight, epoch]))  # first the checkpoint, then the metrics
    with open(os.environ.get("TUNER_METRICS", "metrics.jsonl"), "a") as file:
        file.write(json.dumps({"step": epoch, "val_loss": weight**2}) + "\n")

"""A small network for scikit-learn's handwritten digits (Alpaydin & Kaynak, 1998). It trains in about a second on one CPU core."""

import importlib.metadata
from typing import Any

import numpy as np
import torch
from torch import nn

from tuner.training import Batches, Exported, SpotSafe, accumulate, autocast, grad_scaler, prepare

SEARCH_SPACE: dict[str, dict[str, Any]] = {  # the tunable parameters, in the form of a job request
    "learning_rate": {"type": "float", "low": 1e-3, "high": 3e-1, "log": True},
    "width": {"type": "int", "low": 16, "high": 128, "log": True},
    "depth": {"type": "int", "low": 1, "high": 3},
    "batch_size": {"type": "int", "low": 16, "high": 256, "log": True},
    "dropout": {"type": "float", "low": 0.0, "high": 0.5},
    "weight_decay": {"type": "float", "low": 1e-6, "high": 1e-2, "log": True},
    "optimizer": {"type": "categorical", "choices": ["sgd", "adamw"]},
    "momentum": {"type": "float", "low": 0.0, "high": 0.99, "when": {"optimizer": ["sgd"]}},
}
OBJECTIVE = {"metric": "val_accuracy", "mode": "max"}


@prepare
def data() -> list[torch.Tensor]:
    """Return training images, validation images, training labels and validation labels. The split is always the same.

    Images have the shape (n, 64) and values in [0, 1]. A quarter of the images of each digit is for validation. The data is that of
    `sklearn.datasets.load_digits`. Its file is read directly, because importing scikit-learn takes two seconds of processor time.
    """
    file = importlib.metadata.distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    rows = torch.from_numpy(np.loadtxt(str(file), delimiter=","))
    images, labels = rows[:, :-1].float() / 16, rows[:, -1].long()
    is_validation = torch.zeros(len(rows), dtype=torch.bool)
    is_validation[labels.argsort(stable=True)[::4]] = True
    return [images[~is_validation], images[is_validation], labels[~is_validation], labels[is_validation]]


def build(width: int, depth: int, dropout: float) -> nn.Module:
    """Return a network with `depth` hidden layers."""
    layers: list[nn.Module] = []
    for number in range(depth):
        layers += [nn.Linear(width if number else 64, width), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def train(config: dict[str, Any]) -> None:
    """Train the network.

    Tunable parameters: learning_rate, width, depth, batch_size, dropout, weight_decay, optimizer (sgd, adamw), momentum.
    Constants: precision (fp32, bf16, fp16), accumulate (micro-batches per step), seed.
    Reports after each epoch: val_accuracy in [0, 1], val_loss, train_loss.
    """
    if "seed" in config:  # otherwise the seed of the service counts, which repeats of `confirm` need
        torch.manual_seed(config["seed"])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x_train, x_val, y_train, y_val = (part.to(device) for part in data())
    precision = config.get("precision", "fp32")
    model = build(config.get("width", 64), config.get("depth", 1), config.get("dropout", 0.0)).to(device)

    rate, decay = config.get("learning_rate", 1e-2), config.get("weight_decay", 0.0)
    optimizer: torch.optim.Optimizer
    if config.get("optimizer", "adamw") == "sgd":
        momentum = config.get("momentum", 0.9)
        optimizer = torch.optim.SGD(model.parameters(), rate, momentum=momentum, weight_decay=decay)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=decay)
    scaler = grad_scaler(precision)
    batches = Batches(len(x_train), config.get("batch_size", 64), seed=config.get("seed", 0))

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        with autocast(precision):
            rows = batch.to(device)
            return nn.functional.cross_entropy(model(x_train[rows]), y_train[rows])

    with SpotSafe(model=model, optimizer=optimizer, scaler=scaler, batches=batches) as run:
        for _ in run.steps():
            model.train()
            parts = config.get("accumulate", 1)
            losses = [accumulate(b, parts, loss_of, optimizer=optimizer, scaler=scaler) for b in batches]
            model.eval()
            with torch.no_grad(), autocast(precision):
                logits = model(x_val)
                loss = nn.functional.cross_entropy(logits, y_val)
            accuracy = (logits.argmax(1) == y_val).float().mean()
            run.report(val_accuracy=accuracy, val_loss=loss, train_loss=sum(losses) / len(losses))


def export(config: dict[str, Any], state: dict[str, Any]) -> Exported:
    """Return the trained network. Each exported file is judged by its accuracy on the validation images."""
    x_train, x_val, _, y_val = data()
    model = build(config.get("width", 64), config.get("depth", 1), config.get("dropout", 0.0))
    model.load_state_dict(state["model"])

    def accuracy(predict: Any) -> float:
        return float((predict(x_val).argmax(1) == y_val).float().mean())

    return Exported(
        model, (x_val[:8],), accuracy, calibration=[(rows,) for rows in torch.split(x_train[:256], 32)]
    )

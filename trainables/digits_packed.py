"""A small network for scikit-learn's handwritten digits, of which a worker can train several trials as one batch (`pack`)."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from trainables.digits_mlp import data
from tuner.training import AdamW, Exported, Packed, Sgd
from tuner.training.vmapped import device

# Each width, and each optimizer, is a batch of its own. The other parameters may differ within a batch.
SEARCH_SPACE: dict[str, dict[str, Any]] = {
    "learning_rate": {"type": "float", "low": 1e-3, "high": 3e-1, "log": True},
    "width": {"type": "categorical", "choices": [32, 128]},
    "weight_decay": {"type": "float", "low": 1e-6, "high": 1e-2, "log": True},
    "optimizer": {"type": "categorical", "choices": ["sgd", "adamw"]},
    "momentum": {"type": "float", "low": 0.0, "high": 0.99, "when": {"optimizer": ["sgd"]}},
}
OBJECTIVE = {"metric": "val_accuracy", "mode": "max"}
BATCH = 64  # images
Config = Mapping[str, Any]
Model = Callable[[torch.Tensor], torch.Tensor]


def make(config: Config) -> nn.Module:
    """Return the network."""
    if "seed" in config:  # otherwise the seed of the service counts, which repeats of `confirm` need
        torch.manual_seed(config["seed"])
    width = config.get("width", 32)
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


def optimizer(config: Config, step: int) -> Sgd | AdamW:
    rate, decay = config.get("learning_rate", 1e-2), config.get("weight_decay", 0.0)
    if config.get("optimizer", "adamw") == "sgd":
        return Sgd(rate, momentum=config.get("momentum", 0.9), weight_decay=decay)
    return AdamW(rate, weight_decay=decay)


def batches(config: Config, step: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the shuffled training images and labels of an epoch: shapes (B, 64) and (B,)."""
    x_train, _, y_train, _ = data()
    generator = torch.Generator().manual_seed(config.get("seed", 0) * 1_000_003 + step)
    for rows in torch.split(torch.randperm(len(x_train), generator=generator), BATCH):
        yield x_train[rows], y_train[rows]


def loss(model: Model, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    images, labels = batch
    return nn.functional.cross_entropy(model(images), labels)


def evaluate(model: Model) -> dict[str, torch.Tensor]:
    _, images, _, labels = (part.to(device()) for part in data())
    logits = model(images)
    return {
        "val_accuracy": (logits.argmax(1) == labels).float().mean(),
        "val_loss": nn.functional.cross_entropy(logits, labels),
    }


train = Packed(
    make=make,
    optimizer=optimizer,
    batches=batches,
    loss=loss,
    evaluate=evaluate,
    doc="""Train the network.

    Tunable parameters: learning_rate, width, weight_decay, optimizer (sgd, adamw), momentum.
    Constants: seed.
    Reports after each epoch: val_accuracy in [0, 1], val_loss, train_loss.
    """,
)


def export(config: dict[str, Any], state: dict[str, Any]) -> Exported:
    """Return the trained network. Each exported file is judged by its accuracy on the validation images."""
    x_train, x_val, _, y_val = data()
    model = make(config)
    model.load_state_dict(state["model"])

    def accuracy(predict: Any) -> float:
        return float((predict(x_val).argmax(1) == y_val).float().mean())

    return Exported(
        model, (x_val[:8],), accuracy, calibration=[(rows,) for rows in torch.split(x_train[:256], 32)]
    )

"""A small GPT-style model of characters, trained on source files of Python's standard library, which every machine has.

Pre-norm transformer blocks with causal attention, learned positions and tied embeddings, as in Radford et al. (2019).
"""

import math
import sysconfig
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tuner.training import (
    Exported,
    SpotSafe,
    accumulate,
    autocast,
    grad_scaler,
    prepare,
    quantize_aware,
    recompute,
)

SEARCH_SPACE: dict[str, dict[str, Any]] = {  # the tunable parameters, in the form of a job request
    "learning_rate": {"type": "float", "low": 1e-3, "high": 1e-1, "log": True},
    "width": {"type": "int", "low": 16, "high": 64, "log": True},
    "depth": {"type": "int", "low": 1, "high": 3},
    "batch_size": {"type": "int", "low": 4, "high": 32, "log": True},
    "dropout": {"type": "float", "low": 0.0, "high": 0.5},
    "weight_decay": {"type": "float", "low": 1e-6, "high": 1e-1, "log": True},
    "optimizer": {"type": "categorical", "choices": ["sgd", "adamw"]},
    "momentum": {"type": "float", "low": 0.0, "high": 0.99, "when": {"optimizer": ["sgd"]}},
}
OBJECTIVE = {"metric": "val_loss", "mode": "min"}

FILES = ("argparse.py", "ast.py", "calendar.py", "configparser.py", "csv.py", "dataclasses.py", "difflib.py")
HELD_OUT = ("textwrap.py", "statistics.py")  # used for validation only
CONTEXT = 64  # characters that the model sees
STEPS_AN_EPOCH = 40  # optimizer steps between two reports
ALPHABET = 128  # ASCII; other characters are replaced by a space


@prepare
def texts() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the training text and the validation text as tensors of character codes."""
    return text(FILES), text(HELD_OUT)


def text(files: tuple[str, ...]) -> torch.Tensor:
    """Return the characters of the files as numbers below ALPHABET, shape (n,)."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    joined = "\n".join((folder / name).read_text(encoding="utf-8") for name in files)
    return torch.tensor([ord(c) if ord(c) < ALPHABET else 32 for c in joined])


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply attention and the MLP. Input and output have the shape (batch, characters, width)."""
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(seen.transpose(1, 2).reshape(batch, length, width)))
        mixed: torch.Tensor = x + self.drop(self.mlp(self.norm2(x)))
        return mixed


class CharModel(nn.Module):
    def __init__(self, width: int, depth: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.characters, self.positions = nn.Embedding(ALPHABET, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        for table in (self.characters, self.positions):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        """Return the logits of each next character. Input: (batch, characters). Output: (batch, characters, ALPHABET)."""
        x = self.characters(seen) + self.positions(torch.arange(seen.shape[1], device=seen.device))
        logits: torch.Tensor = self.norm(self.blocks(x)) @ self.characters.weight.T
        return logits


def windows(source: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Return the window of text at each start, shape (n, CONTEXT + 1).

    The first CONTEXT characters of a window are the model's input. The target of each is the character after it.
    """
    return source[starts[:, None] + torch.arange(CONTEXT + 1)]


def validation_windows(held_out: torch.Tensor) -> torch.Tensor:
    return windows(held_out, torch.arange(0, len(held_out) - CONTEXT - 1, 4 * CONTEXT))


def build(config: dict[str, Any]) -> CharModel:
    """Return a new model. A width that is not a multiple of `heads` is rounded down to a multiple, but is at least `heads`."""
    heads = config.get("heads", 4)
    width = max(heads, config.get("width", 64) // heads * heads)
    return CharModel(width, config.get("depth", 2), heads, config.get("dropout", 0.0))


def train(config: dict[str, Any]) -> None:
    """Train the model.

    Tunable parameters: learning_rate, width, depth, batch_size, dropout, weight_decay, optimizer (sgd, adamw), momentum.
    A width that is not a multiple of heads is rounded down to a multiple, but is at least heads.
    Constants: heads, precision (fp32, bf16, fp16), accumulate (micro-batches per step), recompute (1: the activations of all blocks, 2: those
    of every second block), quantize_aware (true: train for export as int8-static), seed.
    Reports after every 40 optimizer steps: val_loss in nats per character, val_bits_per_char, train_loss.
    """
    if "seed" in config:  # otherwise the seed of the service counts, which repeats of `confirm` need
        torch.manual_seed(config["seed"])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    learned, held_out = texts()
    precision = config.get("precision", "fp32")
    model = build(config).to(device)

    if config.get("quantize_aware"):
        quantize_aware(model)
    if config.get("recompute"):
        recompute(model, config["recompute"])
    rate, decay = config.get("learning_rate", 3e-3), config.get("weight_decay", 0.01)
    optimizer: torch.optim.Optimizer
    if config.get("optimizer", "adamw") == "sgd":
        momentum = config.get("momentum", 0.9)
        optimizer = torch.optim.SGD(model.parameters(), rate, momentum=momentum, weight_decay=decay)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=decay)
    scaler = grad_scaler(precision)
    validation = validation_windows(held_out).to(device)

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        with autocast(precision):
            logits = model(batch[:, :-1])
            return nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    # Losses of this epoch so far. Checkpoints contain them, so that an interrupted trial continues within the epoch.
    losses: list[float] = []
    with SpotSafe(model=model, optimizer=optimizer, scaler=scaler, losses=losses) as run:
        for _ in run.steps():
            model.train()
            while len(losses) < STEPS_AN_EPOCH:
                starts = torch.randint(len(learned) - CONTEXT - 1, (config.get("batch_size", 16),))
                parts = config.get("accumulate", 1)
                batch = windows(learned, starts).to(device)
                losses.append(accumulate(batch, parts, loss_of, optimizer=optimizer, scaler=scaler))
                run.checkpoint_if_due()
            model.eval()
            with torch.no_grad():
                loss = float(loss_of(validation))
            train_loss = sum(losses) / len(losses)
            losses.clear()  # before the report, which may save a checkpoint
            run.report(val_loss=loss, val_bits_per_char=loss / math.log(2), train_loss=train_loss)


def export(config: dict[str, Any], state: dict[str, Any]) -> Exported:
    """Return the trained model. Each exported file is judged by its loss on the validation text, in nats per character."""
    learned, held_out = texts()
    model = build(config)
    model.load_state_dict(state["model"])
    validation = validation_windows(held_out)

    def loss(predict: Any) -> float:
        logits = torch.cat([predict(rows) for rows in torch.split(validation[:, :-1], 64)])
        return float(nn.functional.cross_entropy(logits.flatten(0, 1), validation[:, 1:].flatten()))

    starts = torch.arange(256) * (len(learned) // 257)
    calibration = [(rows,) for rows in torch.split(windows(learned, starts)[:, :-1], 32)]
    return Exported(model, (validation[:8, :-1],), loss, calibration)

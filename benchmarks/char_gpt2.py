"""A small GPT-2 of the library `transformers`, trained from random weights on the characters that `trainables.char_lm` learns from."""

from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from trainables.char_lm import ALPHABET, CONTEXT, texts, validation_windows, windows
from tuner.training import SpotSafe

SEARCH_SPACE: dict[str, dict[str, Any]] = {
    "learning_rate": {"type": "float", "low": 1e-4, "high": 1e-1, "log": True},
    "heads": {"type": "int", "low": 1, "high": 4},
    "layers": {"type": "int", "low": 1, "high": 2},
    "batch_size": {"type": "int", "low": 1, "high": 8, "log": True},
    "dropout": {"type": "float", "low": 0.0, "high": 0.5},
    "weight_decay": {"type": "float", "low": 1e-6, "high": 1e-1, "log": True},
}
OBJECTIVE = {"metric": "val_loss", "mode": "min"}
HEAD_WIDTH = 16
STEPS_AN_EPOCH = 4  # optimizer steps between two reports
VALIDATION_WINDOWS = 24


def train(config: dict[str, Any]) -> None:
    """Tune the parameters of the search space. Report val_loss, in nats per character, after every four optimizer steps."""
    torch.manual_seed(0)
    learned, held_out = texts()
    validation = validation_windows(held_out)[:VALIDATION_WINDOWS, :-1]
    dropout = config["dropout"]
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=ALPHABET,
            n_positions=CONTEXT,
            n_embd=HEAD_WIDTH * config["heads"],
            n_head=config["heads"],
            n_layer=config["layers"],
            resid_pdrop=dropout,
            embd_pdrop=dropout,
            attn_pdrop=dropout,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
            loss_type="ForCausalLM",
        )
    )
    optimizer = torch.optim.AdamW(
        model.parameters(), config["learning_rate"], weight_decay=config["weight_decay"]
    )
    with SpotSafe(model=model, optimizer=optimizer) as run:
        for _ in run.steps():
            model.train()
            for _ in range(STEPS_AN_EPOCH):
                starts = torch.randint(len(learned) - CONTEXT - 1, (config["batch_size"],))
                batch = windows(learned, starts)[:, :-1]
                optimizer.zero_grad()
                model(input_ids=batch, labels=batch).loss.backward()  # the model shifts the labels itself
                optimizer.step()
            model.eval()
            with torch.no_grad():
                run.report(val_loss=model(input_ids=validation, labels=validation).loss)

"""A script for accelerate, which the service runs as a program, on one process or several. It imports nothing of the service."""

import argparse
import json
import os
from pathlib import Path

import torch
from accelerate import Accelerator, DataLoaderConfiguration

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--epochs", type=int, default=9)
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()

# Without a seedable sampler, a training that continues would shuffle as in its first epoch.
accelerator = Accelerator(
    cpu=not torch.cuda.is_available(), dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True)
)
torch.manual_seed(options.seed)
inputs = torch.randn(512, 20)
model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
loader = torch.utils.data.DataLoader(inputs, batch_size=32, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

checkpoint = Path(os.environ.get("TUNER_CHECKPOINT_DIR", "checkpoint"))
first = int(os.environ.get("TUNER_STEP", "0"))
if first:
    accelerator.load_state(str(checkpoint))
for epoch in range(first, options.epochs):
    loader.set_epoch(epoch)
    total = torch.zeros((), device=accelerator.device)
    for rows in loader:
        loss = (model(rows) - rows[:, :1].abs()).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        total += loss.detach()
    mean = accelerator.reduce(total, "mean").item() / len(loader)
    # First the checkpoint of all processes, then the metrics.
    accelerator.save_state(str(checkpoint))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        with open(os.environ.get("TUNER_METRICS", "metrics.jsonl"), "a") as file:
            file.write(json.dumps({"step": epoch + 1, "loss": mean}) + "\n")
accelerator.end_training()

"""A script for torchrun, which the service runs as a program: it knows only the directory for the checkpoint and the file for metrics."""

import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--epochs", type=int, default=9)
arguments = parser.parse_args()
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
torch.manual_seed(0)
inputs = torch.randn(512, 20)
model = DistributedDataParallel(torch.nn.Linear(20, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr)
checkpoint = Path(os.environ["TUNER_CHECKPOINT_DIR"], "model.pt")
first = 1
if checkpoint.exists():
    state = torch.load(checkpoint, weights_only=True)
    model.module.load_state_dict(state["model"])
    first = state["epoch"] + 1
for epoch in range(first, arguments.epochs + 1):
    for rows in inputs[rank :: torch.distributed.get_world_size()].split(4):
        loss = (model(rows) - rows[:, :1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        torch.save({"model": model.module.state_dict(), "epoch": epoch}, checkpoint)
        with open(os.environ["TUNER_METRICS"], "a") as file:
            file.write(json.dumps({"step": epoch, "loss": loss.item()}) + "\n")
torch.distributed.destroy_process_group()

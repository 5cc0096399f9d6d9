"""Train one model on several processes with DistributedDataParallel."""

import os

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

from tuner.training import SpotSafe


def train(config: dict[str, float]) -> None:
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    inputs = torch.randn(4096, 20, generator=torch.Generator().manual_seed(0))
    labels = (inputs[:, 0] > 0).long()
    model: torch.nn.Module = torch.nn.Linear(20, 2).to(device)
    if ranks > 1:
        torch.distributed.init_process_group()
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["learning_rate"])
    with SpotSafe(model=model, optimizer=optimizer) as run:
        for _ in run.steps():
            for rows in torch.randperm(4096).chunk(16 * ranks)[rank::ranks]:
                loss = torch.nn.functional.cross_entropy(
                    model(inputs[rows].to(device)), labels[rows].to(device)
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            run.report(loss=loss)
    if ranks > 1:
        torch.distributed.destroy_process_group()

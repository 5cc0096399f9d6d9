"""Trainings of frameworks on two ranks."""

import os
from pathlib import Path
from typing import Any

import torch


def transformers_on_two(config: dict[str, Any]) -> None:
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    from tuner.training.transformers import TunerCallback, tuner_checkpoint

    torch.manual_seed(0)
    small: Any = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    model = BertForSequenceClassification(BertConfig(vocab_size=30, max_position_embeddings=16, **small))
    data: Any = [{"input_ids": torch.arange(8) + i % 5, "labels": i % 2} for i in range(32)]
    arguments = TrainingArguments(
        output_dir="out",
        num_train_epochs=config.get("epochs", 9),
        per_device_train_batch_size=4,
        use_cpu=True,
        ddp_backend="gloo",
        report_to=[],
        learning_rate=0.01,
        disable_tqdm=True,
    )
    callback = TunerCallback(config.get("every"))
    trainer = Trainer(
        model=model, args=arguments, train_dataset=data, eval_dataset=data, callbacks=[callback]
    )
    trainer.train(resume_from_checkpoint=tuner_checkpoint())


def lightning_on_two(config: dict[str, Any]) -> None:
    """Train with Lightning. `strategy` names its strategy, or is "fsdp2" or "fsdp2 in shards" for `ModelParallelStrategy`."""
    import lightning
    from lightning.pytorch.strategies import ModelParallelStrategy
    from torch.distributed.fsdp import fully_shard

    from tuner.training.lightning import TunerCallback, tuner_checkpoint

    strategy: Any = config.get("strategy", "ddp")
    is_sharded = strategy.startswith("fsdp2")
    if is_sharded:
        strategy = ModelParallelStrategy(2, 1, save_distributed_checkpoint=strategy.endswith("in shards"))

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.Dropout(0.2))

        def on_train_start(self) -> None:
            own = Path("lightning.ckpt").absolute()
            assert self.trainer.strategy.broadcast(own) == own, "the path is of the directory of another node"

        def configure_model(self) -> None:
            mesh: Any = self.device_mesh
            if is_sharded:
                fully_shard(self.layers, mesh=mesh["data_parallel"])

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            loss = (self.layers(batch[0]) - 1).square().mean()
            self.log("loss", loss, on_epoch=True, on_step=False, sync_dist=True)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=0.01)

    lightning.seed_everything(0, verbose=False)
    inputs = torch.rand(32, 4, generator=torch.Generator().manual_seed(1))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs), batch_size=4, shuffle=True)
    trainer = lightning.Trainer(
        max_epochs=config.get("epochs", 9),
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        strategy=strategy,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[TunerCallback("loss")],
    )
    trainer.fit(Model(), loader, ckpt_path=tuner_checkpoint())


def accelerate_on_two(config: dict[str, Any]) -> None:
    from accelerate import Accelerator, DataLoaderConfiguration

    from tuner.training import SpotSafe

    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    model: Any = torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.Dropout(0.2))
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=0.01)
    loader: Any = torch.utils.data.DataLoader(torch.rand(32, 4), batch_size=4, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with SpotSafe(model=model, optimizer=optimizer) as run:
        for step in run.steps():
            loader.set_epoch(step)
            for inputs in loader:
                loss = (model(inputs) - 1).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            run.report(loss=accelerator.reduce(loss.detach(), "mean").item(), ranks=accelerator.num_processes)

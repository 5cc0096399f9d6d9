"""Trainings of frameworks on two ranks."""

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
        num_train_epochs=9,
        per_device_train_batch_size=4,
        use_cpu=True,
        ddp_backend="gloo",
        report_to=[],
        learning_rate=0.01,
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=model, args=arguments, train_dataset=data, eval_dataset=data, callbacks=[TunerCallback()]
    )
    trainer.train(resume_from_checkpoint=tuner_checkpoint())


def lightning_on_two(config: dict[str, Any]) -> None:
    import lightning

    from tuner.training.lightning import TunerCallback, tuner_checkpoint

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.Dropout(0.2))

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
        max_epochs=9,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[TunerCallback("loss")],
    )
    trainer.fit(Model(), loader, ckpt_path=tuner_checkpoint())

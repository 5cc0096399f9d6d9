"""A small language model, built from a configuration, and trained with the `Trainer` of transformers."""

from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from tuner.training.transformers import TunerCallback, tuner_checkpoint


class Texts(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Sequences that count upwards from a random number."""

    def __init__(self, count: int, seed: int) -> None:
        starts = torch.randint(0, 40, (count, 1), generator=torch.Generator().manual_seed(seed))
        self.tokens = (starts + torch.arange(8)) % 50

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def train(config: dict[str, Any], every: int | None = None, *further: TrainerCallback) -> None:
    shape = {"n_layer": 1, "n_head": 2, "n_embd": 16, "vocab_size": 50, "n_positions": 8}
    model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
    arguments = TrainingArguments(
        output_dir="out",
        num_train_epochs=9,
        learning_rate=0.01,
        per_device_train_batch_size=8,
        lr_scheduler_type="cosine",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(
        model,
        arguments,
        train_dataset=Texts(48, 1),
        eval_dataset=Texts(16, 2),
        callbacks=[*further, TunerCallback(every)],
    )
    trainer.train(resume_from_checkpoint=tuner_checkpoint())


def train_by_steps(config: dict[str, Any]) -> None:
    """A step of the job is four optimizer steps, so steps end within epochs of six."""
    train(config, every=4)

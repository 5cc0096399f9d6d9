"""A small language model, built from a configuration, and trained with the `Trainer` of transformers."""

from collections.abc import Iterator
from typing import Any

import torch
from transformers import (
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

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


class Stream(torch.utils.data.IterableDataset[dict[str, torch.Tensor]]):
    """The same sequences, without a length."""

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        texts = Texts(48, 1)
        yield from (texts[index] for index in range(len(texts)))


class AddsMetrics(Trainer):
    """A trainer that adds a metric to those of the evaluation, and logs another one."""

    def evaluate(self, *args: Any, **more: Any) -> dict[str, float]:
        metrics = super().evaluate(*args, **more)
        metrics["eval_added"] = 1.5
        self.log({"eval_logged": 2.5})
        return metrics


def train(
    config: dict[str, Any],
    every: int | None = None,
    *further: TrainerCallback,
    training: Any = None,
    valid: Any = None,
    output_dir: str = "out",
    kind: type[Trainer] = Trainer,
    compute_metrics: Any = None,
    **more: Any,
) -> None:
    shape = {"n_layer": 1, "n_head": 2, "n_embd": 16, "vocab_size": 50, "n_positions": 8}
    model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
    arguments = TrainingArguments(
        output_dir=output_dir,
        num_train_epochs=9,
        learning_rate=0.01,
        per_device_train_batch_size=8,
        lr_scheduler_type="cosine",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        **more,
    )
    trainer = kind(
        model,
        arguments,
        train_dataset=training or Texts(48, 1),
        eval_dataset=valid or Texts(16, 2),
        compute_metrics=compute_metrics,
        callbacks=[*further[:1], TunerCallback(every), *further[1:]],
    )
    trainer.train(resume_from_checkpoint=tuner_checkpoint())


def train_by_steps(config: dict[str, Any]) -> None:
    """A step of the job is four optimizer steps, so steps end within epochs of six."""
    train(config, every=4)


def train_with_stream(config: dict[str, Any]) -> None:
    """Train on a data set without a length. An epoch has six optimizer steps."""
    train(config, training=Stream(), max_steps=54)


def train_with_two_sets(config: dict[str, Any]) -> None:
    """Evaluate on two sets, with an argument that would leave the optimizer out of checkpoints."""
    train(config, valid={"one": Texts(16, 2), "other": Texts(16, 3)}, save_only_model=True)


def train_with_more_metrics(config: dict[str, Any]) -> None:
    train(config, kind=AddsMetrics)


def train_with_nested_metrics(config: dict[str, Any]) -> None:
    """Compute a report with metrics of each class, as scikit-learn's `classification_report`, and a confusion matrix."""
    nested = {"report": {"even": {"f1-score": 0.5}, "accuracy": 0.25}, "confusion": [[3, 1], [2, 4]]}
    train(config, compute_metrics=lambda _: dict(nested))


def train_until_stopped(config: dict[str, Any]) -> None:
    """Stop after the fifth evaluation, because none but the first counts as an improvement.

    The callback that stops comes before or after the one that reports.
    """
    stops = EarlyStoppingCallback(early_stopping_patience=4, early_stopping_threshold=1e9)
    order = [stops] if config["stops"] == "first" else [TrainerCallback(), stops]
    train(config, config.get("every"), *order, metric_for_best_model="eval_loss", eval_strategy="epoch")


def train_briefly(config: dict[str, Any]) -> None:
    """Train ten optimizer steps. A step of the job is four of them."""
    train(config, every=4, max_steps=10)

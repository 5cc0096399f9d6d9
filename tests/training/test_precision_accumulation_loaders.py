"""Test what mixed precision, gradient accumulation and batches compute on a CPU."""

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests import strategies
from tuner.training import (
    Batches,
    SpotSafe,
    accumulate,
    autocast,
    grad_scaler,
    measured,
    precision,
    quantize_aware,
    recompute,
)


class Counted(torch.optim.SGD):
    """Count the optimizer's steps, and keep the gradients of the last step."""

    def __init__(self, model: nn.Module, rate: float = 0.1) -> None:
        super().__init__(model.parameters(), rate)
        self.steps = 0
        self.gradients: list[torch.Tensor] = []

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.steps += 1
        self.gradients = [p.grad.clone() for group in self.param_groups for p in group["params"]]
        super().step(closure)


def examples(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(11)
    inputs = torch.randn(size, 4, generator=generator, dtype=torch.float64)
    return inputs, inputs.prod(1, keepdim=True)


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def stepped(size: int, parts: int, precision: str = "fp32") -> tuple[float, Counted, int]:
    """Return the loss of one step over `size` examples in `parts`, its optimizer, and the number of
    micro-batches.
    """
    inputs, targets = examples(size)
    network, calls = model(), []
    optimizer = Counted(network)

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        calls.append(len(batch))
        return nn.functional.mse_loss(network(inputs[batch]), targets[batch])

    loss = accumulate(torch.arange(size), parts, loss_of, optimizer=optimizer, scaler=grad_scaler(precision))
    assert sum(calls) == size
    return loss, optimizer, len(calls)


def test_loss_may_be_a_one_element_tensor() -> None:
    network = model()
    inputs, targets = examples(4)
    loss = accumulate(
        torch.arange(4),
        2,
        lambda rows: nn.functional.mse_loss(network(inputs[rows]), targets[rows]).reshape(1),
        optimizer=Counted(network),
        scaler=grad_scaler("fp32"),
    )
    assert loss == pytest.approx(stepped(4, 1)[0])


@strategies.examples(40)
@given(size=st.integers(1, 40), parts=st.integers(1, 12))
def test_accumulated_gradients_equal_the_step_of_the_whole_batch(size: int, parts: int) -> None:
    whole_loss, whole, _ = stepped(size, 1)
    loss, accumulated, calls = stepped(size, parts)
    assert loss == pytest.approx(whole_loss)
    assert accumulated.steps == whole.steps == 1
    assert calls <= min(size, parts)
    assert len(accumulated.gradients) == len(whole.gradients) == 4
    torch.testing.assert_close(accumulated.gradients, whole.gradients)


@pytest.mark.parametrize(("size", "parts", "calls"), [(12, 1, 1), (12, 4, 4), (12, 5, 4), (3, 8, 3)])
def test_batch_is_split_into_at_most_one_part_per_example(size: int, parts: int, calls: int) -> None:
    assert stepped(size, parts)[2] == calls


def test_loss_scaling_does_not_change_gradients() -> None:
    _, plain, _ = stepped(16, 4, "fp32")
    _, scaled, _ = stepped(16, 4, "fp16")
    torch.testing.assert_close(scaled.gradients, plain.gradients)


def test_gradients_are_reset_before_each_step() -> None:
    network = model()
    inputs, targets = examples(8)
    optimizer = Counted(network, rate=0.0)

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(network(inputs[batch]), targets[batch])

    seen = []
    for _ in range(2):
        accumulate(torch.arange(8), 2, loss_of, optimizer=optimizer, scaler=grad_scaler("fp32"))
        seen.append(optimizer.gradients)
    torch.testing.assert_close(seen[0], seen[1], rtol=0, atol=0)


def test_fp16_overflow_skips_the_step_and_lowers_the_scale() -> None:
    network = model()
    optimizer, scaler = Counted(network), grad_scaler("fp16")
    before = scaler.get_scale()

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = network(torch.ones(1, 4, dtype=torch.float64)).sum() * float("inf")
        return out

    accumulate(torch.arange(2), 2, loss_of, optimizer=optimizer, scaler=scaler)
    assert optimizer.steps == 0
    assert scaler.get_scale() < before


PRECISIONS = [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]


@pytest.mark.parametrize(("precision", "dtype"), PRECISIONS)
def test_autocast_runs_the_forward_pass_in_the_given_precision(precision: str, dtype: torch.dtype) -> None:
    linear = nn.Linear(4, 4)
    with autocast(precision):
        assert linear(torch.ones(2, 4)).dtype == dtype
    assert linear(torch.ones(2, 4)).dtype == linear.weight.dtype == torch.float32


def test_fp32_inside_another_autocast_keeps_fp32() -> None:
    linear = nn.Linear(4, 4)
    with autocast("bf16"), autocast("fp32"):
        assert linear(torch.ones(2, 4)).dtype == torch.float32


@pytest.mark.parametrize("precision", ["fp64", "float32", "", "BF16"])
def test_unknown_precision_is_refused_and_the_error_lists_the_known_ones(precision: str) -> None:
    with pytest.raises(ValueError, match="fp32, bf16 and fp16"):
        autocast(precision)


@pytest.mark.parametrize(("precision", "scales"), [("fp32", False), ("bf16", False), ("fp16", True)])
def test_losses_are_scaled_only_for_fp16(precision: str, scales: bool) -> None:
    scaler = grad_scaler(precision)
    assert scaler.is_enabled() is scales
    assert (scaler.scale(torch.ones(())) > 1).item() is scales


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_training_learns_in_every_precision(precision: str) -> None:
    torch.manual_seed(2)
    inputs = torch.randn(64, 4)
    targets = inputs.sum(1, keepdim=True)
    network = nn.Linear(4, 1)
    optimizer, scaler = torch.optim.SGD(network.parameters(), 0.2), grad_scaler(precision)

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        with autocast(precision):
            return nn.functional.mse_loss(network(inputs[batch]).float(), targets[batch])

    rows = torch.arange(64)
    losses = [accumulate(rows, 2, loss_of, optimizer=optimizer, scaler=scaler) for _ in range(30)]
    assert losses[-1] < losses[0] / 20
    assert network.weight.dtype == torch.float32


def epochs(batches: Batches, count: int) -> list[list[list[int]]]:
    return [[batch.tolist() for batch in batches] for _ in range(count)]


sizes = st.integers(1, 50)


@given(size=sizes, batch=st.integers(1, 60), seed=st.integers(0, 1000))
def test_epoch_has_every_example_once_in_full_batches(size: int, batch: int, seed: int) -> None:
    batches = Batches(size, batch, seed=seed)
    (epoch,) = epochs(batches, 1)
    assert sorted(row for rows in epoch for row in rows) == list(range(size))
    assert len(epoch) == len(batches)
    assert {len(rows) for rows in epoch[:-1]} <= {min(batch, size)}


@given(size=sizes, batch=st.integers(1, 20), seed=st.integers(0, 1000), cut=st.integers(0, 120))
def test_batches_resume_at_the_exact_position(size: int, batch: int, seed: int, cut: int) -> None:
    whole = Batches(size, batch, seed=seed)
    stream = [rows for epoch in epochs(whole, 3) for rows in epoch]
    first, resumed = Batches(size, batch, seed=seed), Batches(size, batch, seed=seed)
    cut = min(cut, len(stream))
    before = taken(first, cut)
    resumed.load_state_dict(first.state_dict())
    assert before + taken(resumed, len(stream) - cut) == stream


def taken(batches: Batches, count: int) -> list[list[int]]:
    """Return the next `count` batches, across the ends of epochs."""
    batch_indices: list[list[int]] = []
    while len(batch_indices) < count:
        for batch in batches:
            batch_indices.append(batch.tolist())
            if len(batch_indices) == count:
                break
    return batch_indices


@given(seed=st.integers(0, 1000))
def test_batch_order_depends_only_on_the_seed(seed: int) -> None:
    first, two = Batches(20, 6, seed=seed), Batches(20, 6, seed=seed)
    torch.manual_seed(1)
    expected = epochs(first, 2)
    torch.manual_seed(2)
    assert epochs(two, 2) == expected


def test_batch_order_differs_between_epochs_and_seeds() -> None:
    orders = [str(epochs(Batches(30, 30, seed=seed), 1)) for seed in range(10)]
    orders += [str([epoch]) for epoch in epochs(Batches(30, 30), 5)[1:]]
    assert len(set(orders)) == 14


def test_batch_order_does_not_use_the_global_generator() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    epochs(Batches(20, 6), 2)
    assert torch.equal(torch.get_rng_state(), before)


# Measurements for the service's advice


def test_data_loader_and_precision_settings_are_measured() -> None:
    assert measured.measurements() == {}
    loader = torch.utils.data.DataLoader(torch.arange(6), batch_size=3)
    with SpotSafe() as run:
        timed = run.data(loader)
        assert [batch.tolist() for batch in timed] == [[0, 1, 2], [3, 4, 5]]
        assert len(timed) == 2
    with autocast("bf16"):
        pass
    noted = measured.measurements()
    assert noted["data_wait_ns"] > 0
    facts = {"loader_workers": 0, "batch_size": 3, "pin_memory": False, "precision": "bf16", "device": "cpu"}
    assert noted["facts"] == facts
    with pytest.raises(ValueError, match="fp8"):
        autocast("fp8")
    assert measured.measurements()["facts"]["precision"] == "bf16"


def test_quantization_aware_layers_round_to_8_bits_and_keep_their_state() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    model, x = quantize_aware(copy.deepcopy(plain)), torch.randn(64, 1, 4, 4)
    output = model(x)
    assert 0 < float((output - plain(x)).detach().abs().max()) < 0.02
    output.square().mean().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())
    assert {name: value.shape for name, value in model.state_dict().items()} == {
        name: value.shape for name, value in plain.state_dict().items()
    }
    ones = nn.Linear(300, 1, bias=False)
    ones.weight.data = torch.linspace(-1, 1, 300)[None]
    levels = {float(quantize_aware(ones)(row).detach()) for row in torch.eye(300)[:, None]}
    assert len(levels) == 255
    copied = copy.deepcopy(model)
    nn.init.zeros_(copied[3].weight)
    assert torch.equal(copied(x)[0], copied[3].bias)
    assert model(x[:0]).shape == (0, 3)
    assert model(torch.full_like(x, math.nan)).isnan().all()
    with pytest.raises(ValueError, match="no Linear or convolution layer"):
        quantize_aware(nn.Sequential(nn.LayerNorm(2)))


@pytest.mark.parametrize("is_padded", [False, True], ids=["whole", "padded"])
def test_quantization_aware_transformer_rounds_also_in_evaluations(
    monkeypatch: pytest.MonkeyPatch, is_padded: bool
) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = copy.deepcopy(quantize_aware(nn.TransformerEncoder(layer, 2))).eval()
    mask = torch.tensor([[False] * 4, [False, False, True, True]]) if is_padded else None
    rounded: list[torch.Size] = []
    monkeypatch.setattr(precision, "_rounded", lambda values: rounded.append(values.shape) or values)
    with torch.no_grad():
        encoder(torch.randn(2, 4, 8), src_key_padding_mask=mask)
    assert rounded == [(2, 4, 8), (2, 4, 16)] * 2


def test_recomputed_layers_keep_their_rounding() -> None:
    torch.manual_seed(0)
    aware = quantize_aware(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    recomputed, x = recompute(recompute(copy.deepcopy(aware))), torch.randn(8, 4)
    copied = copy.deepcopy(recomputed)
    assert torch.equal(recomputed(x), aware(x))
    nn.init.zeros_(copied[1].weight)
    assert torch.equal(copied(x)[0], copied[1].bias)
    replaced = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    replaced[0].forward = lambda inputs: inputs * 2  # type: ignore[method-assign]
    assert torch.equal(recompute(replaced)(x), replaced[1](x * 2))

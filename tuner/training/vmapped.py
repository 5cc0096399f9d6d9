"""Train the models of several trials at the same time, as one model with a leading dimension of trials.

`torch.func.vmap` turns the computation of one model into that of N models, so that N small matrix products become one large one
(https://docs.pytorch.org/docs/stable/func.html). Training arrays of models in this way was described by Wang et al., "Horizontally Fused
Training Array" (arXiv:2102.02344).

Shapes: a member has P trained numbers. Its parameters are one flat tensor of shape (P,), and so is each moment of its optimizer. A stack of
N members has tensors of shape (N, P). Buffers and frozen parameters keep their shape and get the leading dimension N. A batch of shape
(B, ...) becomes (N, B, ...). Losses and metrics have the shape (N,), and hyperparameters
(N, 1).

Invariant: the computation of a member never depends on another member, and a failed computation changes no member.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

Tensors = dict[str, torch.Tensor]
Batch = torch.Tensor | tuple[torch.Tensor, ...]
Config = Mapping[str, Any]
FUNC_LIMITS = "https://docs.pytorch.org/docs/stable/func.ux_limitations.html"
ADVICE = (
    "The function is computed with torch.func.vmap for all trials of a batch. It cannot draw random numbers, as dropout does, change "
    "buffers, call .item(), or branch on the value of a tensor; use torch.where for the latter. If it has to, train this model with SpotSafe "
    f"in a function instead of Packed. All limits: {FUNC_LIMITS}"
)

MATRIX = 10_000  # Larger matrices are copied one by one.
BUFFER_CHANGED = "the buffer {name} changes when the model is called; a batch of trials supports only buffers that stay the same"


@dataclass(frozen=True, slots=True)
class Sgd:
    """Stochastic gradient descent with momentum and weight decay, as in `torch.optim.SGD`."""

    lr: float  #: The learning rate.
    momentum: float = 0.0
    weight_decay: float = 0.0


@dataclass(frozen=True, slots=True)
class AdamW:
    """Adam with decoupled weight decay, as in `torch.optim.AdamW` (Loshchilov & Hutter, arXiv:1711.05101)."""

    lr: float  #: The learning rate.
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01


Optimizer = Sgd | AdamW


class BatchFailed(RuntimeError):
    """A function of a packed trainable failed, or a model cannot be trained in a batch."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The functions of a packed trainable. See `tuner.training.Packed`."""

    make: Callable[[Any], nn.Module]
    optimizer: Callable[[Any, int], Optimizer]
    batches: Callable[[Any, int], Iterable[Any]]
    loss: Callable[[Any, Any], torch.Tensor]
    evaluate: Callable[[Any], Mapping[str, torch.Tensor]] | None


def device() -> torch.device:
    """Return the device on which batches are trained: the GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def checked(module: object) -> nn.Module:
    """Return the module that `make` has returned, if it can be trained in a batch.

    Raises:
        TypeError: It is not a module, or its parameters have several types.
        ValueError: It has layers that cannot be trained in a batch, or nothing to train.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"make(config) returned a {type(module).__name__}; return a torch.nn.Module")
    for name, layer in module.named_modules():
        shown = f"{name or 'the module'} ({type(layer).__name__})"
        if isinstance(layer, _NormBase) and layer.running_mean is not None:
            raise ValueError(
                f"{shown} changes its running statistics while it trains, which a batch of trials does not support; use nn.GroupNorm, or "
                "pass track_running_stats=False"
            )
        if isinstance(layer, _DropoutNd) and layer.p > 0:
            raise ValueError(
                f"{shown} draws random numbers, which a batch of trials does not support; use weight decay instead, or train this model with "
                "SpotSafe in a function instead of Packed"
            )
    types = {parameter.dtype for parameter in trained(module).values()}
    if not types:
        raise ValueError("the module of make(config) has no parameters that require gradients")
    if types not in ({torch.float32}, {torch.float64}):
        raise TypeError(
            f"the parameters have the types {', '.join(sorted(map(str, types)))}; a batch of trials needs float32 or float64 for all of them"
        )
    return module


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that are trained. A parameter with several names is returned with the first one."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def constants(module: nn.Module) -> Tensors:
    """Return copies of the buffers and frozen parameters."""
    frozen = {name: tensor for name, tensor in module.named_parameters() if not tensor.requires_grad}
    return {
        name: tensor.detach().clone() for name, tensor in {**frozen, **dict(module.named_buffers())}.items()
    }


def flat(module: nn.Module) -> torch.Tensor:
    """Return a copy of the trained parameters as one tensor of shape (P,)."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in trained(module).values()])


def load_flat(module: nn.Module, parameters: torch.Tensor) -> None:
    """Copy a tensor of shape (P,) into the trained parameters of the module."""
    with torch.no_grad():
        sources = Layout(module).views(parameters)
        for name, target in trained(module).items():
            target.copy_(sources[name])


class Layout:
    """The places of the trained parameters in a tensor of shape (P,)."""

    def __init__(self, module: nn.Module) -> None:
        named = trained(module)
        self._shapes = {name: parameter.shape for name, parameter in named.items()}
        self._sizes = [parameter.numel() for parameter in named.values()]

    def views(self, parameters: torch.Tensor) -> Tensors:
        """Return views of a tensor of shape (P,) or (N, P) with the names and shapes of the parameters."""
        pieces = torch.split(parameters, self._sizes, dim=-1)
        return {
            name: piece.view(*parameters.shape[:-1], *shape)
            for (name, shape), piece in zip(self._shapes.items(), pieces, strict=True)
        }


def structure(module: nn.Module) -> Hashable:
    """Return a value that is equal for two modules only if they differ in nothing but the values of parameters and buffers.

    The layers' types and plain attributes are part of it. Attributes that are other objects, such as functions, must be the same object.
    """
    first_names: dict[int, str] = {}
    tensors = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    shapes = tuple(
        (name, first_names.setdefault(id(tensor), name), tensor.shape, tensor.dtype, tensor.requires_grad)
        for name, tensor in tensors
    )
    layers = tuple(
        (name, type(layer), _comparable(_attributes(layer)))
        for name, layer in module.named_modules(remove_duplicate=False)
    )
    return shapes, layers


def _attributes(layer: nn.Module) -> dict[str, Any]:
    # `training` is set before each computation. The others hold tensors and layers, which are compared one by one.
    skipped = {"training", "_parameters", "_buffers", "_modules"}
    return {name: value for name, value in vars(layer).items() if name not in skipped}


def _comparable(value: Any) -> Hashable:
    """Return a hashable value that is equal for equal plain values, and for the same object."""
    if value is None or isinstance(value, bool | int | float | str | bytes | torch.dtype | torch.device):
        return type(value), value
    if isinstance(value, tuple | list):
        return type(value), tuple(map(_comparable, value))
    if isinstance(value, set | frozenset):
        return type(value), frozenset(map(_comparable, value))
    if isinstance(value, Mapping):
        return type(value), tuple((_comparable(key), _comparable(inner)) for key, inner in value.items())
    return "object", id(value)


def _zeros_of(optimizer: type, parameters: torch.Tensor) -> Tensors:
    """Return the moments of an optimizer before its first update."""
    if optimizer is Sgd:
        return {"velocity": torch.zeros_like(parameters)}
    updates = torch.zeros(1, dtype=torch.float64, device=parameters.device)
    return {"mean": torch.zeros_like(parameters), "square": torch.zeros_like(parameters), "updates": updates}


def _hyperparameters(optimizer: Optimizer) -> dict[str, float]:
    shared = {"lr": float(optimizer.lr), "weight_decay": float(optimizer.weight_decay)}
    match optimizer:
        case Sgd():
            return {**shared, "momentum": float(optimizer.momentum)}
        case AdamW():
            beta1, beta2 = map(float, optimizer.betas)
            return {**shared, "beta1": beta1, "beta2": beta2, "eps": float(optimizer.eps)}


def _apply(tensors: Tensors, gradient: torch.Tensor, hyper: Tensors) -> None:
    """Update the parameters and moments of N members in place, as `torch.optim` does.

    Nothing of the size of the model is allocated, so an update cannot run out of memory when it is half done.

    Args:
        tensors: Parameters and moments of shape (N, P), and the number of `updates` of shape (N, 1). The moments are those of `Sgd` or
            of `AdamW`, by which the rule is chosen.
        gradient: Shape (N, P). It is overwritten.
        hyper: Hyperparameters of shape (N, 1), in float64, because 1 - beta2 ** updates is not exact enough in float32.
    """
    parameters = tensors["parameters"]
    cast = {name: value.to(parameters.dtype) for name, value in hyper.items()}
    if "velocity" in tensors:
        gradient.addcmul_(parameters, cast["weight_decay"])
        tensors["velocity"].mul_(cast["momentum"]).add_(gradient)
        parameters.addcmul_(tensors["velocity"], cast["lr"], value=-1)
        return
    mean, square, updates = tensors["mean"], tensors["square"], tensors["updates"].add_(1)
    mean.lerp_(gradient, (1 - hyper["beta1"]).to(mean.dtype))
    square.lerp_(gradient.square_(), (1 - hyper["beta2"]).to(square.dtype))
    parameters.mul_((1 - hyper["lr"] * hyper["weight_decay"]).to(parameters.dtype))
    rate = hyper["lr"] / (1 - hyper["beta1"] ** updates)
    root = (1 - hyper["beta2"] ** updates).sqrt()
    torch.sqrt(square, out=gradient).div_(root.to(mean.dtype)).add_(cast["eps"])
    torch.div(mean, gradient, out=gradient)
    parameters.addcmul_(gradient, rate.to(mean.dtype), value=-1)


class BatchMember:
    """The model of one trial, with its optimizer's state and its position in the current step.

    Raises:
        TypeError, ValueError: The module cannot be trained in a batch.
    """

    def __init__(self, number: int, config: Config, module: nn.Module) -> None:
        self.number, self.config, self.module = number, config, checked(module)
        #: `parameters` and the moments of shape (P,), and `loss` and `updates_in_step` of shape (1,). They are in `stack` if it is not None.
        self.tensors: Tensors = {}
        self.buffers = {name: tensor.to(device()) for name, tensor in constants(module).items()}
        self.stack: Stack | None = None
        self.optimizer: str | None = None  #: The class of the optimizer. None before the first step.
        self.hyper: dict[str, float] = {}
        self.batch: Batch | None = None  #: The next batch of the step. None if the step has no further batch.
        self.batch_shape: Hashable = None
        self.key: Hashable = None  #: Members with the same key can train the current step together.
        self.is_alone = False  #: Whether a computation with other members has failed.
        self._structure = structure(module)
        self._batches: Iterator[Any] = iter(())
        self.load(flat(module), None, {})

    def load(self, parameters: torch.Tensor, optimizer: str | None, moments: Tensors) -> None:
        """Continue from these parameters and moments."""
        if parameters.shape != (expected := flat(self.module)).shape or parameters.dtype != expected.dtype:
            raise ValueError(
                f"make(config) returned a model of {expected.numel()} {expected.dtype} parameters here, but one of {parameters.numel()} "
                f"{parameters.dtype} in the trial's process; make the same model from the same config"
            )
        self._leave_stack()
        zero = torch.zeros(1, device=device(), dtype=torch.float64)
        tensors = {"parameters": parameters, **moments, "loss": zero, "updates_in_step": zero}
        self.tensors, self.optimizer = (
            {name: value.to(device()) for name, value in tensors.items()},
            optimizer,
        )

    def load_buffers(self, buffers: Tensors) -> None:
        """Use these values of the buffers and frozen parameters, which may be random, instead of those of the module."""
        shapes = [{name: tensor.shape for name, tensor in each.items()} for each in (self.buffers, buffers)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"make(config) returned a model with the buffers {shapes[0]} here, but with {shapes[1]} in the trial's process; make the "
                "same model from the same config"
            )
        self.buffers = {name: tensor.to(device()) for name, tensor in buffers.items()}

    def state(self) -> Tensors:
        """Return copies of the parameters and moments on the CPU."""
        tensors = self.tensors if self.stack is None else self.stack.tensors_of(self)
        return {
            name: tensor.to("cpu", copy=True)
            for name, tensor in tensors.items()
            if name not in ("loss", "updates_in_step")
        }

    def begin(self, recipe: Recipe, step: int) -> None:
        """Ask the user's functions for the optimizer and the first batch of a step. Their exceptions propagate.

        Raises:
            TypeError: A function has returned a value of the wrong type.
            ValueError: The step has no batch, or the optimizer is not that of earlier steps.
        """
        chosen = recipe.optimizer(self.config, step)
        if not isinstance(chosen, Sgd | AdamW):
            raise TypeError(
                f"optimizer(config, step) returned a {type(chosen).__name__}; return tuner.training.Sgd(...) or tuner.training.AdamW(...)"
            )
        name = type(chosen).__name__
        if self.optimizer is None:
            self._leave_stack()
            self.tensors |= _zeros_of(type(chosen), self.tensors["parameters"])
        elif self.optimizer != name:
            raise ValueError(
                f"optimizer(config, step) returned {name} for step {step}, but {self.optimizer} before; return the same class in all steps"
            )
        self.optimizer, self.hyper = name, _hyperparameters(chosen)
        if self.stack is not None:
            self.stack.hyper = None
        batches = recipe.batches(self.config, step)
        count = len(batches) if isinstance(batches, Sized) else None
        self._batches = iter(batches)
        self.draw()
        if self.batch is None:
            raise ValueError(f"batches(config, {step}) has no batch; return at least one for each step")
        alone = self.number if self.is_alone else None
        self.key = (self._structure, name, self.batch_shape, count, alone)

    def draw(self) -> None:
        """Take the next batch of the step. Exceptions of the user's iterable propagate."""
        drawn = next(self._batches, None)
        if isinstance(drawn, list):
            drawn = tuple(drawn)
        tensors = drawn if isinstance(drawn, tuple) else () if drawn is None else (drawn,)
        if drawn == () or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
            shown = ", ".join(type(each).__name__ for each in tensors) or "an empty tuple"
            raise TypeError(f"batches(config, step) yielded {shown}; yield tensors or tuples of tensors")
        moved = tuple(tensor.to(device()) for tensor in tensors)
        self.batch = None if drawn is None else moved if isinstance(drawn, tuple) else moved[0]
        self.batch_shape = isinstance(drawn, tuple), tuple((tensor.shape, tensor.dtype) for tensor in tensors)

    def leave(self) -> None:
        """Forget the current step, because the trial has ended or failed."""
        self._batches, self.batch = iter(()), None
        self._leave_stack()

    def _leave_stack(self) -> None:
        if self.stack is not None:
            self.stack.dissolve()


class Stack:
    """The tensors of several members with the leading dimension N. It is kept as long as its members train together."""

    def __init__(self, members: Sequence[BatchMember]) -> None:
        self.members = list(members)
        self.module = members[0].module
        self.layout = Layout(self.module)
        self.is_checked = False  #: Whether the loss was computed with vmap.
        self.tensors = _stacked([member.tensors for member in members])
        self.buffers = _stacked([member.buffers for member in members])
        self.gradient = torch.empty_like(self.tensors["parameters"])  #: Memory that each update overwrites.
        self.hyper: Tensors | None = None  #: None if a member has begun a step since it was computed.
        for member in members:
            member.stack, member.tensors = self, {}

    @classmethod
    def of(cls, members: Sequence[BatchMember]) -> "Stack":
        """Return the stack of these members. It is built only if they are not stacked already."""
        stack = members[0].stack
        if stack is not None and stack.members == list(members):
            return stack
        for member in members:
            if member.stack is not None:
                member.stack.dissolve()
        return cls(members)

    def tensors_of(self, member: BatchMember) -> Tensors:
        """Return views of the tensors of one member."""
        number = self.members.index(member)
        return {name: tensor[number] for name, tensor in self.tensors.items()}

    def dissolve(self) -> None:
        """Give each member its own tensors. They are copies, because a view would keep the memory of the whole stack."""
        for member in self.members:
            member.tensors = {name: tensor.clone() for name, tensor in self.tensors_of(member).items()}
        for member in self.members:
            member.stack = None

    @contextmanager
    def buffers_unchanged(self) -> Iterator[None]:
        """Raise ValueError at the end of the `with` block if a computation has changed a buffer in place."""
        before = {name: buffer._version for name, buffer in self.buffers.items()}
        yield
        for name, buffer in self.buffers.items():
            if buffer._version != before[name]:
                raise ValueError(BUFFER_CHANGED.format(name=name))

    def hyperparameters(self) -> Tensors:
        """Return the hyperparameters, of shape (N, 1)."""
        if self.hyper is None:
            rows = [member.hyper for member in self.members]
            self.hyper = {
                name: torch.tensor([[row[name]] for row in rows], dtype=torch.float64, device=device())
                for name in rows[0]
            }
        return self.hyper


def _stacked(rows: Sequence[Tensors]) -> Tensors:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


@dataclass
class Round:
    """The result, for each model that trains with others, of training one batch or of being evaluated at the end of a step."""

    #: Members in the middle of a step, in lists that train together.
    going: list[list[BatchMember]] = field(default_factory=list)
    #: Members that have finished their step.
    metrics: dict[BatchMember, dict[str, float]] = field(default_factory=dict)
    errors: dict[BatchMember, Exception] = field(default_factory=dict)  #: Members that have failed.


class _Pace:
    """Finds out whether a batch of members takes less time in one stack or one by one.

    Large models take longer in a stack on a processor: their time is arithmetic, and a stack of them does not fit into its cache. The
    first batches are computed in a stack, the next ones one by one, and all others in the way that was faster. The least time counts.
    """

    TRIES = 4

    def __init__(self) -> None:
        self._times: tuple[list[float], list[float]] = ([], [])

    def stacks(self) -> bool:
        """Return whether to compute the next batch in a stack."""
        stacked, single = self._times
        if len(stacked) < self.TRIES:
            return True
        return len(single) >= self.TRIES and min(stacked) <= min(single)

    def took(self, seconds: float, *, stacked: bool) -> None:
        times = self._times[0 if stacked else 1]
        if len(times) < self.TRIES:
            times.append(seconds)


class Trainer:
    """Train members with the functions of a packed trainable."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._paces = defaultdict[Hashable, _Pace](
            _Pace
        )  #: By the key and the number of members that train together.

    def round(self, members: Sequence[BatchMember]) -> Round:
        """Train one batch of each member, or evaluate it if its step has no further batch.

        The members have equal keys. If their batches differ in shape from then on, they train in several lists.
        """
        result = Round()
        parts: dict[Hashable, list[BatchMember]] = {}
        for member in members:
            parts.setdefault(member.batch_shape, []).append(member)
        for part in parts.values():
            pace = self._paces[part[0].key, len(part)]
            stacks = pace.stacks() or device().type != "cpu"
            if part[0].batch is None:
                result.metrics |= self._together(part, self._evaluate, result.errors, stacks=stacks)
                continue
            began = time.perf_counter()
            done = self._together(part, self._update, result.errors, stacks=stacks)
            pace.took(time.perf_counter() - began, stacked=stacks)
            going = [member for member in part if member in done and _draws(member, result.errors)]
            result.going += [going] if going else []
        return result

    def _together(
        self,
        members: Sequence[BatchMember],
        compute: Callable[[Stack], list[dict[str, float]]],
        errors: dict[BatchMember, Exception],
        *,
        stacks: bool = True,
    ) -> dict[BatchMember, dict[str, float]]:
        """Compute the members in one stack. If that fails, compute each one alone, and record the errors of those that fail alone, too.

        If none fails alone, the members are not computed together again. Without `stacks`, compute each one alone at once.
        """
        if len(members) == 1 or (stacks and not any(member.is_alone for member in members)):
            try:
                return dict(zip(members, compute(Stack.of(members)), strict=True))
            except Exception as error:
                if len(members) == 1:
                    errors[members[0]] = error
                    return {}
        done: dict[BatchMember, dict[str, float]] = {}
        for member in members:
            done |= self._together([member], compute, errors)
        for member in members:
            member.is_alone |= stacks and len(done) == len(members)
        return done

    def _update(self, stack: Stack) -> list[dict[str, float]]:
        """Make one update of each member of the stack."""
        batches = [member.batch for member in stack.members]
        batch = (
            tuple(map(torch.stack, zip(*batches, strict=True)))
            if isinstance(batches[0], tuple)
            else torch.stack(batches)  # type: ignore[arg-type]
        )
        stack.module.train()

        def one(parameters: Tensors, buffers: Tensors, batch: Batch) -> torch.Tensor:
            model = _StackedModel(stack.module, parameters, buffers)
            return _scalar("loss(model, batch)", self._recipe.loss(model, batch))

        # The loss of a member depends only on its own parameters, so the gradient of the sum has the gradients of all members. Here it takes
        # 5 to 25 % less time than torch.func.grad, which also has to import the compiler for more than a second.
        views = stack.layout.views(stack.tensors["parameters"])
        parameters = {name: view.detach().requires_grad_() for name, view in views.items()}
        with _explained("loss"), stack.buffers_unchanged():
            if len(stack.members) > 1 or not stack.is_checked:
                losses = vmap(one)(parameters, stack.buffers, batch)
                stack.is_checked = True
            if len(stack.members) == 1:
                # A single model takes half of the time without vmap. The first batch was computed with vmap before, so that code which
                # only works alone fails in a script, too.
                first = tuple(part[0] for part in batch) if isinstance(batch, tuple) else batch[0]
                buffers = {name: buffer[0] for name, buffer in stack.buffers.items()}
                losses = one({name: leaf.squeeze(0) for name, leaf in parameters.items()}, buffers, first)[
                    None
                ]
            if not losses.requires_grad:
                raise ValueError(
                    "it does not depend on the parameters; compute it from the outputs of model(...)"
                )
            gradients = torch.autograd.grad(losses.sum(), list(parameters.values()), allow_unused=True)
        for target, gradient in zip(stack.layout.views(stack.gradient).values(), gradients, strict=True):
            _copy(target, gradient)
        _apply(stack.tensors, stack.gradient, stack.hyperparameters())
        stack.tensors["loss"] += losses.detach()[:, None]
        stack.tensors["updates_in_step"] += 1
        return [{} for _ in stack.members]

    def _evaluate(self, stack: Stack) -> list[dict[str, float]]:
        """Return the metrics of each member at the end of its step, and begin to sum the losses of the next one."""
        stack.module.eval()
        sums = stack.tensors
        metrics: Tensors = {"train_loss": (sums["loss"] / sums["updates_in_step"])[:, 0]}

        def one(parameters: Tensors, buffers: Tensors) -> Tensors:
            model = _StackedModel(stack.module, parameters, buffers)
            assert self._recipe.evaluate is not None
            named = self._recipe.evaluate(model)
            if not isinstance(named, Mapping):
                raise TypeError(
                    f"evaluate(model) returned a {type(named).__name__}; return a dictionary of tensors"
                )
            return {str(name): _scalar(f"evaluate(model)[{name!r}]", value) for name, value in named.items()}

        if self._recipe.evaluate is not None:
            with _explained("evaluate"), stack.buffers_unchanged(), torch.no_grad():
                metrics |= vmap(one)(stack.layout.views(sums["parameters"]), stack.buffers)
        columns = {name: values.tolist() for name, values in metrics.items()}
        sums["loss"].zero_()
        sums["updates_in_step"].zero_()
        return [
            {name: column[number] for name, column in columns.items()} for number in range(len(stack.members))
        ]


def _copy(target: torch.Tensor, gradient: torch.Tensor | None) -> None:
    """Copy the gradient of a parameter of N members. None, for a parameter that the loss does not use, becomes zeros.

    With vmap, the gradient of a matrix comes transposed. PyTorch has a fast copy for a transposed matrix, but not for a stack of them: four
    matrices of 1024 x 1024 took 33 ms together.
    """
    if gradient is None:
        target.zero_()
    elif gradient.dim() == 3 and not gradient.is_contiguous() and gradient[0].numel() >= MATRIX:
        for of_one, source in zip(target, gradient, strict=True):
            of_one.copy_(source)
    else:
        target.copy_(gradient)


def _draws(member: BatchMember, errors: dict[BatchMember, Exception]) -> bool:
    try:
        member.draw()
    except Exception as error:
        errors[member] = error
        return False
    return True


class _StackedModel:
    """The module of one member, which can be called like the module itself."""

    def __init__(self, module: nn.Module, parameters: Tensors, buffers: Tensors) -> None:
        self._module, self._buffers = module, buffers
        self._given = {**parameters, **buffers}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        output = functional_call(self._module, self._given, args, kwargs)
        for name, buffer in self._buffers.items():
            if self._given[name] is not buffer:
                raise ValueError(BUFFER_CHANGED.format(name=name))
        return output


def _scalar(where: str, value: object) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise TypeError(
            f"{where} is a {type(value).__name__}; return a tensor of one number, without .item()"
        )
    if value.dim():
        raise ValueError(f"{where} has the shape {tuple(value.shape)}; return one number, such as the mean")
    return value


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Replace an error of the user's function `name` with one that says what a batch does not support.

    Do not replace an error about memory, because the service recognises it by its class.
    """
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        raise BatchFailed(f"{name} raised {type(error).__name__}: {error}. {ADVICE}") from error

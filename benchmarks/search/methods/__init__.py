"""The methods by name. The modules of a method are imported when it is created, because some are not installed everywhere."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks.search.arena import Policy, Problem


@dataclass(frozen=True)
class Method:
    """A search method. `peers` ones need the interpreter with Syne Tune; `ours` are the product with its own simulator."""

    title: str
    make: Callable[[Problem], Policy] | None = None
    peers: bool = False

    @property
    def ours(self) -> bool:
        return self.make is None


def _random(problem: Problem) -> Policy:
    from benchmarks.search.methods.simple import Random

    return Random(problem)


def _grid(problem: Problem) -> Policy:
    from benchmarks.search.methods.simple import Grid

    return Grid(problem)


def _median(problem: Problem) -> Policy:
    from benchmarks.search.methods.simple import MedianStopping

    return MedianStopping(problem)


def _fixed_epochs(problem: Problem, *, first: int) -> Policy:
    from benchmarks.search.methods.simple import FixedEpochs

    return FixedEpochs(problem, first)


def _ifbo(problem: Problem) -> Policy:
    from benchmarks.search.methods.ifbo import IfBO

    return IfBO(problem)


def _tpe(problem: Problem, *, pruner: str | None = None) -> Policy:
    from benchmarks.search.methods import optuna

    pruners = {"halving": optuna.successive_halving, "hyperband": optuna.hyperband}
    return optuna.Tpe(problem, pruners[pruner] if pruner else None)


def _asha(problem: Problem, *, kde: bool) -> Policy:
    from benchmarks.search.methods.halving import PromotionAsha
    from benchmarks.search.methods.kde import Kde, Uniform

    return PromotionAsha(problem, Kde if kde else Uniform)


def _hyperband(problem: Problem, *, kde: bool) -> Policy:
    from benchmarks.search.methods.halving import Hyperband
    from benchmarks.search.methods.kde import Kde, Uniform

    return Hyperband(problem, Kde if kde else Uniform)


def _ray_asha(problem: Problem, *, search: str) -> Policy:
    from benchmarks.search.methods import ray
    from benchmarks.search.methods.halving import rungs
    from benchmarks.search.methods.kde import Kde, Uniform

    if search == "optuna":
        return ray.StoppingAsha(problem, ray.OptunaSearched)
    sampler = Kde if search == "kde" else Uniform
    return ray.StoppingAsha(problem, lambda task: ray.Sampled(sampler(task), rungs(task.steps)))


def _ray_hyperband(problem: Problem) -> Policy:
    from benchmarks.search.methods import ray
    from benchmarks.search.methods.kde import Uniform

    return ray.SyncHyperband(problem, Uniform)


def _syne(problem: Problem, *, name: str) -> Policy:
    from benchmarks.search.methods.syne import SyneTune

    return SyneTune(problem, name)


METHODS: dict[str, Method] = {
    "ours": Method("ours"),
    "random": Method("random search, full fidelity", _random),
    "grid": Method("grid, full fidelity", _grid),
    "tpe": Method("Optuna TPE, full fidelity", _tpe),
    "median": Method("median stopping", _median),
    "one_epoch": Method("i-Epoch with 1 step, random", partial(_fixed_epochs, first=1)),
    "four_epochs": Method("i-Epoch with 4 steps, random", partial(_fixed_epochs, first=4)),
    "ifbo": Method("ifBO's rule with our model", _ifbo),
    "hyperband_ray": Method("Ray Tune HyperBand, random", _ray_hyperband),
    "hyperband": Method("Hyperband (reference), random", partial(_hyperband, kde=False)),
    "asha_stopping": Method("Ray Tune ASHA (stopping), random", partial(_ray_asha, search="random")),
    "asha_stopping_optuna": Method("Ray Tune ASHA + its OptunaSearch", partial(_ray_asha, search="optuna")),
    "asha_stopping_kde": Method("Ray Tune ASHA (stopping) + KDE", partial(_ray_asha, search="kde")),
    "optuna_sha": Method("Optuna TPE + its SuccessiveHalvingPruner", partial(_tpe, pruner="halving")),
    "optuna_hyperband": Method("Optuna TPE + its HyperbandPruner", partial(_tpe, pruner="hyperband")),
    "asha": Method("promotion ASHA (reference), random", partial(_asha, kde=False)),
    "bohb": Method("BOHB (reference)", partial(_hyperband, kde=True)),
    "asha_kde": Method("promotion ASHA + KDE (reference)", partial(_asha, kde=True)),
    "syne_asha": Method("Syne Tune ASHA (promotion)", partial(_syne, name="asha"), peers=True),
    "syne_bohb": Method("Syne Tune BOHB", partial(_syne, name="bohb"), peers=True),
    "syne_mobster": Method("Syne Tune MOBSTER", partial(_syne, name="mobster"), peers=True),
    "syne_hypertune": Method("Syne Tune Hyper-Tune", partial(_syne, name="hypertune"), peers=True),
    "syne_dyhpo": Method("Syne Tune DyHPO", partial(_syne, name="dyhpo"), peers=True),
    "ours_asha_random": Method("ours, promotion ASHA, random"),
    "ours_asha_stopping_random": Method("ours, stopping ASHA, random"),
    "ours_asha_tpe": Method("ours, promotion ASHA + TPE"),
}

"""Tune code that trains with XGBoost or LightGBM. PyTorch is not imported.

    xgboost.train(params, train, num_boost_round=rounds, evals=[(valid, "valid")], callbacks=[TunerCallback("valid-logloss")])

    lightgbm.train(
        params, train, num_boost_round=rounds, valid_sets=[valid], valid_names=["valid"],
        callbacks=[TunerCallback("valid-binary_logloss")], init_model=tuner_model(),
    )

A step of the job is a boosting round, or `every` rounds. XGBoost's callback restores the model itself. For LightGBM pass `init_model`.
The number of rounds in the call is the largest number that a trial may have.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.training.framework_run import FrameworkRun, restored_directory

XGBOOST_FILE = "model.ubj"
LIGHTGBM_FILE = "model.txt"


def tuner_model() -> str | None:
    """Return the model file to pass as LightGBM's `init_model`, or None if training starts from the beginning."""
    directory = restored_directory()
    return None if directory is None else str(directory / LIGHTGBM_FILE)


def TunerCallback(*metrics: str, every: int = 1, artifacts_dir: str | Path | None = None) -> Any:
    """Return a callback for `xgboost.train` or `lightgbm.train`, depending on which was imported.

    It reports after each step, and saves and stops when the service says so.

    Args:
        metrics: The names of the metrics to report: data set, dash, metric, such as `valid-logloss`. Without names all are reported.
        every: The number of boosting rounds that are one step of the job. A round takes milliseconds, and a report about one.
        artifacts_dir: A directory whose new and changed files are stored with each step, with the limits of `SpotSafe.report`.

    Raises:
        RuntimeError: Neither XGBoost nor LightGBM was imported.
    """
    if "xgboost" in sys.modules:
        return _callback_of_both()(metrics, every, artifacts_dir)
    if "lightgbm" in sys.modules:
        return _LightGBMCallback(metrics, every, artifacts_dir)
    raise RuntimeError("import xgboost or lightgbm before calling TunerCallback")


class _LightGBMCallback:
    order = 30  # after those of LightGBM that print and record

    def __init__(self, metrics: tuple[str, ...], every: int, artifacts_dir: str | Path | None) -> None:
        if every < 1:
            raise ValueError(f"every is {every}; name at least one boosting round")
        self._names, self._every = metrics, every
        self._run = FrameworkRun(artifacts_dir)
        self._restored_rounds = self._run.step * every
        self._began = False

    def __call__(self, env: Any) -> None:
        if not self._began:
            self._began = True
            if env.begin_iteration != self._restored_rounds:
                raise RuntimeError(
                    "training does not continue from its checkpoint; call lightgbm.train(..., init_model=tuner_model())"
                )
            self._run.begin()
        scores = {f"{data}-{name}": value for data, name, value, *_ in env.evaluation_result_list}
        # After a restore LightGBM would train as many rounds again as the call names.
        last = env.iteration + 1 >= env.end_iteration - env.begin_iteration
        self._report(env.iteration + 1, scores, env.model, LIGHTGBM_FILE, last=last)
        if last:
            from lightgbm.callback import EarlyStopException

            raise EarlyStopException(env.iteration, env.evaluation_result_list)

    def _report(self, rounds: int, scores: Mapping[str, float], model: Any, file: str, *, last: bool) -> None:
        """Report and save, if the number of rounds so far is a multiple of those of a step."""
        if rounds % self._every:
            return
        missing = [name for name in self._names if name not in scores]
        if missing:
            raise ValueError(
                f"{', '.join(missing)}: not evaluated; the evaluated metrics are {', '.join(scores) or 'none'}"
            )
        reported = {name: scores[name] for name in self._names or scores}
        if self._run.report(reported, last=last):
            self._run.save(lambda place: model.save_model(str(place / file)))


class _NeverStops:
    """The `before_iteration` of a callback, which XGBoost calls and LightGBM reads as a flag."""

    def __call__(self, model: Any, epoch: int, evals_log: Mapping[str, Any]) -> bool:
        return False

    def __bool__(self) -> bool:
        return False


def _callback_of_both() -> type:
    """Return a class of callbacks for XGBoost. They work with LightGBM too, for code that imports both libraries."""
    from xgboost.callback import TrainingCallback

    class Callback(TrainingCallback, _LightGBMCallback):
        def __init__(self, metrics: tuple[str, ...], every: int, artifacts_dir: str | Path | None) -> None:
            TrainingCallback.__init__(self)
            _LightGBMCallback.__init__(self, metrics, every, artifacts_dir)

        # LightGBM would call a callback before each round, and not after it, if this attribute were true.
        before_iteration = _NeverStops()

        def before_training(self, model: Any) -> Any:
            if self._run.restored is not None:
                settings = model.save_config()
                model.load_model(self._run.restored / XGBOOST_FILE)
                model.load_config(settings)
            self._run.begin()
            return model

        def after_iteration(
            self, model: Any, epoch: int, evals_log: Mapping[str, Mapping[str, list[Any]]]
        ) -> bool:
            scores = {
                f"{data}-{name}": seen[-1] for data, of in evals_log.items() for name, seen in of.items()
            }
            self._report(self._restored_rounds + epoch + 1, scores, model, XGBOOST_FILE, last=False)
            return False

        def after_training(self, model: Any) -> Any:
            self._run.end(lambda place: model.save_model(str(place / XGBOOST_FILE)))
            return model

    return Callback

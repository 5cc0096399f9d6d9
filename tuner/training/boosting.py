"""Tune code that trains with XGBoost or LightGBM. PyTorch is not imported.

    xgboost.train(params, train, num_boost_round=rounds, evals=[(valid, "valid")], callbacks=[TunerCallback("valid-logloss")])

    lightgbm.train(
        params, train, num_boost_round=rounds, valid_sets=[valid], valid_names=["valid"],
        callbacks=TunerCallback("valid-binary_logloss").continuing(lightgbm.early_stopping(50)), init_model=tuner_model(),
    )

A step of the job is a boosting round, or `every` rounds. XGBoost's callback restores the model itself. For LightGBM pass `init_model`.
The number of rounds in the call is the largest number that a trial may have.

Callbacks that count rounds or compare scores, such as early stopping, keep their state in memory. After a restore they get the earlier rounds
again, with the scores that the checkpoint recorded, and so continue as if there had been no interruption. XGBoost's callbacks need nothing
for that. LightGBM's must be passed to `continuing`.
"""

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tuner.training.framework_run import FrameworkRun, restored_directory

XGBOOST_FILE = "model.ubj"
LIGHTGBM_FILE = "model.txt"
EVALUATIONS_FILE = "evaluations.json"


def tuner_model() -> str | None:
    """Return the model file to pass as LightGBM's `init_model`, or None if training starts from the beginning."""
    directory = restored_directory()
    return None if directory is None else str(directory / LIGHTGBM_FILE)


def TunerCallback(*metrics: str, every: int = 1, artifacts_dir: str | Path | None = None) -> Any:
    """Return a callback for `xgboost.train`, for `lightgbm.train`, or for both, depending on which of the libraries were imported.

    The callback reports after each step. It saves and stops when the service requests it.

    Args:
        metrics: The names of the metrics to report: data set, dash, metric, such as `valid-logloss`. Without names all are reported.
        every: The number of boosting rounds that are one step of the job. A report takes about a millisecond, so report less often if
            rounds take only milliseconds.
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
    def __init__(self, metrics: tuple[str, ...], every: int, artifacts_dir: str | Path | None) -> None:
        if every < 1:
            raise ValueError(f"`every` is {every}; give at least one boosting round")
        # LightGBM sorts callbacks by `order`. This one comes after those that print and record, and before early stopping, so that the last
        # step is reported. LightGBM reads `order` only from the instance, not from the class.
        self.order = 25
        self._names, self._every = metrics, every
        self._run = FrameworkRun(artifacts_dir)
        self._rounds = 0
        self._earlier: Any = None  #: The scores of the earlier attempts' rounds. None if there were none.
        if self._run.restored is not None:
            recorded = json.loads((self._run.restored / EVALUATIONS_FILE).read_text())
            # Use the recorded number of rounds: if training ended in the middle of a step, the model has more rounds than its finished steps have.
            self._rounds, self._earlier = recorded["rounds"], recorded["evaluations"]
        self._restored_rounds = self._rounds
        self._evaluations: list[list[list[Any]]] = []  # LightGBM's scores, by round
        self._continuing: list[Any] = []

    def continuing(self, *callbacks: Any) -> list[Any]:
        """Return the list to pass as `callbacks` to `lightgbm.train`, with which the given callbacks continue after a restore.

        LightGBM then calls this callback and the given ones, so do not pass them a second time.

        The given callbacks count the rounds of all attempts. After a restore, those that LightGBM calls after each round first
        get the earlier rounds again, with the recorded scores.

        Raises:
            TypeError: A callback is not callable. Callbacks of XGBoost are not, and they need no `continuing`.
        """
        for callback in callbacks:
            if not callable(callback):
                raise TypeError(
                    f"{callback!r} is not a callback of LightGBM; callbacks of other libraries do not need `continuing`"
                )
        before = [callback for callback in callbacks if getattr(callback, "before_iteration", False)]
        after = [callback for callback in callbacks if callback not in before]
        # Callbacks without `order` come first, in the order in which they were passed, as in LightGBM.
        self._continuing += sorted(after, key=lambda callback: getattr(callback, "order", -1))
        return [*(_BeforeRound(callback) for callback in before), self]

    def __call__(self, env: Any) -> None:
        from lightgbm.callback import EarlyStopException

        if env.iteration == env.begin_iteration:
            self._begin(env)
        self._evaluations.append([list(evaluation) for evaluation in env.evaluation_result_list])
        env = _counted_from_start(env)
        scores = {f"{data}-{name}": value for data, name, value, *_ in env.evaluation_result_list}
        # End the training here: after a restore, LightGBM would train the number of rounds in the call in addition to the restored ones.
        stop = None
        if env.iteration + 1 >= env.end_iteration:
            stop = EarlyStopException(env.iteration, env.evaluation_result_list)
        try:
            self._call_continuing(env)
        except EarlyStopException as stopped:
            stop = stopped
        self._report(env.iteration + 1, scores, env.model, LIGHTGBM_FILE, self._evaluations, last=bool(stop))
        if stop:
            self._end(env.model, LIGHTGBM_FILE, self._evaluations)
            raise stop

    def _begin(self, env: Any) -> None:
        _refuse_folds(env.model, "lightgbm")
        self._run.begin()
        if env.begin_iteration != self._restored_rounds:
            raise RuntimeError(
                f"training begins at round {env.begin_iteration}, but the trial's checkpoint has {self._restored_rounds} rounds; "
                "call lightgbm.train(..., init_model=tuner_model())"
            )
        self._evaluations = list(self._earlier or [])
        for count, evaluations in enumerate(self._evaluations):
            # In LightGBM 4.7 and later, an evaluation is a named tuple.
            results = [
                type(newest)(*values) if hasattr(newest, "_fields") else tuple(values)
                for newest, values in zip(env.evaluation_result_list, evaluations, strict=True)
            ]
            earlier = dataclasses.replace(env, iteration=count, evaluation_result_list=results)
            self._call_continuing(_counted_from_start(earlier))

    def _call_continuing(self, env: Any) -> None:
        for callback in self._continuing:
            callback(env)

    def _report(
        self, rounds: int, scores: Mapping[str, float], model: Any, file: str, evaluations: Any, *, last: bool
    ) -> None:
        """Report a step if `rounds`, the number of trained rounds, completes one. Save if requested. `last` is True if training ends now."""
        self._rounds = rounds
        if rounds % self._every:
            return
        missing = [name for name in self._names if name not in scores]
        if missing:
            raise ValueError(
                f"training did not evaluate {', '.join(missing)}; the evaluated metrics are {', '.join(scores) or 'none'}"
            )
        reported = {name: scores[name] for name in self._names or scores}
        if self._run.report(reported, last=last):
            self._run.save(self._writer(model, file, evaluations))

    def _end(self, model: Any, file: str, evaluations: Any) -> None:
        self._run.end(self._writer(model, file, evaluations))

    def _writer(self, model: Any, file: str, evaluations: Any) -> Callable[[Path], None]:
        """Return a function that writes a checkpoint of the model and the recorded scores into a directory."""

        def write(place: Path) -> None:
            model.save_model(str(place / file))
            recorded = {"rounds": self._rounds, "evaluations": evaluations}
            (place / EVALUATIONS_FILE).write_text(json.dumps(recorded, default=float))

        return write


def _refuse_folds(model: Any, library: str) -> None:
    """Raise TypeError if the models of several folds are trained instead of one model, because they could not be restored."""
    if not isinstance(model, sys.modules[library].Booster):
        raise TypeError(
            f"TunerCallback trains one model, but {library}.cv trains one for each fold; call {library}.train for each fold, and make each fold "
            "a step of the job: use one SpotSafe, and report once for each fold"
        )


class _BeforeRound:
    """Wrap a callback that LightGBM calls before each round, such as a schedule, so that it counts the rounds of all attempts."""

    before_iteration = True

    def __init__(self, callback: Any) -> None:
        self._callback = callback
        self.order = getattr(callback, "order", -1)

    def __call__(self, env: Any) -> None:
        self._callback(_counted_from_start(env))


def _counted_from_start(env: Any) -> Any:
    """Return LightGBM's environment of a round, changed as if training had begun with the first round.

    After a restore, LightGBM sets `end_iteration` to the rounds of the restored model plus those that the call of `lightgbm.train` names.
    In the result, `end_iteration` is only the number of rounds that the call names.
    """
    return dataclasses.replace(env, begin_iteration=0, end_iteration=env.end_iteration - env.begin_iteration)


class _NeverStops:
    """The value of the attribute `before_iteration` of a callback that works with XGBoost and with LightGBM.

    XGBoost calls this value like a method before each round, and ends training if the result is True. Therefore the result is always
    False. LightGBM does not call this value, but reads it as a flag, which is False.
    """

    def __call__(self, model: Any, epoch: int, evals_log: Mapping[str, Any]) -> bool:
        return False

    def __bool__(self) -> bool:
        return False


class _EarlierRounds:
    """Let XGBoost's loop run through the rounds of earlier attempts without training.

    XGBoost counts the rounds of each training from 0, even if it continues a model. This object replaces the model's methods `update` and
    `eval_set`, so that the loop and all callbacks get the earlier rounds again, with their recorded scores. The restored model is loaded at
    the first of these rounds.
    """

    def __init__(
        self,
        model: Any,
        rounds: int,
        evaluations: Mapping[str, Mapping[str, list[float]]],
        load: Callable[[], None],
    ) -> None:
        self._model, self._rounds, self._evaluations, self._load = model, rounds, evaluations, load
        model.update, model.eval_set = self._update, self._eval_set

    def end(self) -> None:
        """Restore the model's own methods, so that the following rounds train the model."""
        for method in ("update", "eval_set"):
            vars(self._model).pop(method, None)

    def _update(self, dtrain: Any, iteration: int, fobj: Any = None) -> None:
        # Load the model only at the first of these rounds, because other callbacks note how many rounds the model has when training begins.
        if iteration == 0:
            self._load()
        if iteration >= self._rounds:
            self.end()
            self._model.update(dtrain, iteration, fobj)

    def _eval_set(self, evals: Any, iteration: int = 0, *_: Any) -> str:
        """Return the recorded scores of a round, in the format of XGBoost's `eval_set`."""
        scores = [
            f"{data}-{name}:{values[iteration]!r}"
            for data, metrics in self._evaluations.items()
            for name, values in metrics.items()
        ]
        return "\t".join([f"[{iteration}]", *scores])


class _XGBoostCallback(_LightGBMCallback):
    def __init__(self, metrics: tuple[str, ...], every: int, artifacts_dir: str | Path | None) -> None:
        super().__init__(metrics, every, artifacts_dir)
        self._earlier_rounds: _EarlierRounds | None = None
        self._history: Mapping[str, Mapping[str, list[Any]]] = {}

    # LightGBM would call a callback before each round, and not after it, if this attribute were true.
    before_iteration = _NeverStops()

    def before_training(self, model: Any) -> Any:
        _refuse_folds(model, "xgboost")
        if self._restored_rounds:
            self._earlier_rounds = _EarlierRounds(
                model, self._restored_rounds, self._earlier, lambda: self._restore(model)
            )
        else:
            self._restore(model)
        return model

    def _restore(self, model: Any) -> None:
        if self._run.restored is not None:
            settings = model.save_config()
            model.load_model(self._run.restored / XGBOOST_FILE)
            model.load_config(settings)
        self._run.begin()

    def after_iteration(
        self, model: Any, epoch: int, evals_log: Mapping[str, Mapping[str, list[Any]]]
    ) -> bool:
        self._history = evals_log
        if epoch >= self._restored_rounds:
            scores = {
                f"{data}-{name}": seen[-1] for data, of in evals_log.items() for name, seen in of.items()
            }
            self._report(epoch + 1, scores, model, XGBOOST_FILE, evals_log, last=False)
        return False

    def after_training(self, model: Any) -> Any:
        if self._earlier_rounds is not None:
            self._earlier_rounds.end()
        # If another callback ends the training, XGBoost does not call later callbacks for that round. So report the last round here if it
        # was not reported.
        evaluated = max((len(seen) for of in self._history.values() for seen in of.values()), default=0)
        if evaluated > self._rounds:
            self.after_iteration(model, evaluated - 1, self._history)
        self._end(model, XGBOOST_FILE, self._history)
        return model


def _callback_of_both() -> type:
    """Return a callback class for XGBoost that also works with LightGBM, because code may import both libraries."""
    from xgboost.callback import TrainingCallback

    class Callback(_XGBoostCallback, TrainingCallback):
        pass

    return Callback

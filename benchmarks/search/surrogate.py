"""XGBoost on OpenML data sets, as answered by a surrogate: a search space of a real library in which eight of 14 parameters are conditional.

The surrogate is `rbv2_xgboost` of YAHPO Gym (Pfisterer et al., AutoML 2022), a network that predicts the results of XGBoost from its
parameters and from the share of the data that it is trained with. Get it from https://github.com/slds-lmu/yahpo_data (Apache-2.0).
"""

import json
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt
import onnxruntime

from tuner.domain.space import Categorical, Config, Float, Int, Space, Value
from tuner.domain.time import NS

# OpenML ids of the data sets, in the order of the problems: bank-marketing, segment, eucalyptus, adult, dilbert, har, dna and madelon.
DATA_SETS = ("1461", "40984", "188", "1590", "41163", "1478", "40670", "1485")
TREES, DART = {"booster": ("gbtree", "dart")}, {"booster": ("dart",)}
SPACE = Space(
    {
        "booster": Categorical(("gblinear", "gbtree", "dart")),
        "impute": Categorical(("impute.mean", "impute.median", "impute.hist")),
        "nrounds": Int(7, 2981, log=True),
        "eta": Float(math.exp(-7), 1, log=True, when=TREES),
        "gamma": Float(math.exp(-10), math.exp(2), log=True, when=TREES),
        "lambda": Float(math.exp(-7), math.exp(7), log=True),
        "alpha": Float(math.exp(-7), math.exp(7), log=True),
        "subsample": Float(0.1, 1),
        "max_depth": Int(1, 15, when=TREES),
        "min_child_weight": Float(math.exp(1), math.exp(5), log=True, when=TREES),
        "colsample_bytree": Float(0.01, 1, when=TREES),
        "colsample_bylevel": Float(0.01, 1, when=TREES),
        "rate_drop": Float(0, 1, when=DART),
        "skip_drop": Float(0, 1, when=DART),
    }
)
NUMBERS = [name for name, parameter in SPACE.parameters.items() if not isinstance(parameter, Categorical)]
REPETITION = 5.0  # which of the ten repetitions of each recorded training the surrogate answers for
ACCURACY, TRAIN_S = 0, 6  # columns of its answer
DRAWS = 5000  # configurations from which the best and the median accuracy are estimated


class XGBoost:
    """The training of XGBoost on one data set. It implements the simulator's `Training` protocol.

    Step k of n trains with the share k / n of the data. All steps of a configuration take equally long.

    Args:
        folder: The folder `rbv2_xgboost` of the surrogate.
        number: The index of the data set in `DATA_SETS`.
        steps: n.
    """

    space = SPACE

    def __init__(self, folder: Path, number: int, steps: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._model = onnxruntime.InferenceSession(folder / "model.onnx", options)
        self._codes = json.loads((folder / "encoding.json").read_text())
        self._data_set, self._steps = DATA_SETS[number], steps
        self._known: dict[str, npt.NDArray[np.float32]] = {}

    def step_ns(self, config: Config, step: int) -> int:
        return max(1, round(float(self._answers(config)[-1, TRAIN_S]) / self._steps * NS))

    def value(self, config: Config, step: int) -> float:
        return float(self._answers(config)[step - 1, ACCURACY])

    @cached_property
    def scale(self) -> tuple[float, float, float]:
        """Return the mean seconds of a training, and the accuracy of the best and of the median of 5,000 random configurations."""
        rng = Random(0)
        drawn = [self.space.sample(rng) for _ in range(DRAWS)]
        answers = self._ask(drawn, [self._steps])[:, 0]
        seconds, values = answers[:, TRAIN_S].clip(min=0), answers[:, ACCURACY]
        return float(seconds.mean()), float(values.max()), float(np.median(values))

    def _answers(self, config: Mapping[str, Value]) -> npt.NDArray[np.float32]:
        key = json.dumps(config, sort_keys=True)
        if key not in self._known:
            self._known[key] = self._ask([config], range(1, self._steps + 1))[0]
        return self._known[key]

    def _ask(self, configs: Sequence[Mapping[str, Value]], steps: Sequence[int]) -> npt.NDArray[np.float32]:
        """Return the surrogate's answers, of shape (configurations, steps, columns). An inactive number is 0."""
        numbers = [
            [*(float(str(config.get(name, 0.0))) for name in NUMBERS), step / self._steps, REPETITION]
            for config in configs
            for step in steps
        ]
        choices = [
            [
                self._codes["task_id"][self._data_set],
                self._codes["booster"][config["booster"]],
                self._codes["num.impute.selected.cpo"][config["impute"]],
            ]
            for config in configs
            for _ in steps
        ]
        asked = {"x_cat": np.array(choices, np.int32), "x_cont": np.array(numbers, np.float32)}
        (answers,) = self._model.run(None, asked)
        return np.asarray(answers, np.float32).reshape(len(configs), len(steps), -1)

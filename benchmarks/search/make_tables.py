"""Make tables of learning curves to which `auto` was not fitted: twelve tasks of LCBench, and six of TaskSet.

    python -m benchmarks.search.make_tables --lcbench DIR --taskset DIR --out DIR

- `--lcbench` is the folder `lcbench` of https://github.com/slds-lmu/yahpo_data (Apache-2.0), the surrogate of LCBench (Zimmer et al., TPAMI
  2021) in YAHPO Gym. It answers for 2,000 random configurations of each task.
- `--taskset` is the folder `data/taskset` of https://github.com/releaunifreiburg/DyHPO (Apache-2.0), with 1,000 recorded trainings of each
  task of TaskSet (Metz et al. 2020). They have no times, so each step counts 30 s.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

Floats = npt.NDArray[np.float64]
STEPS = 51
# OpenML tasks, drawn at random from those of which the product's other tables have none.
LCBENCH = (126026, 34539, 167104, 167184, 167190, 167201, 168910, 189354, 189866, 189873, 189905, 189906)
CONFIGS = 2000
LCBENCH_SPACE: list[list[Any]] = [
    ["batch_size", 16, 512, "log", "int"],
    ["learning_rate", 0.0001, 0.1, "log", "float"],
    ["momentum", 0.1, 0.99, "lin", "float"],
    ["weight_decay", 1e-05, 0.1, "lin", "float"],
    ["num_layers", 1, 5, "lin", "int"],
    ["max_units", 64, 1024, "log", "int"],
    ["max_dropout", 0.0, 1.0, "lin", "float"],
]
TIME, ACCURACY = 0, 1  # columns of the surrogate's answer. The time is the sum up to an epoch
SHORTEST = 0.05  # of a configuration's mean step: the surrogate's times need not increase from epoch to epoch
TASKSET = (
    "patch128_LSTM128_avg_bs64",
    "patch32_GRU64_avg_bs128",
    "patch32_IRNN64_relu_last_bs128",
    "patch32_LSTM128_E128_bs128",
    "patch32_VRNN128_tanh_bs128",
    "patch32_VRNN64_tanh_avg_bs128",
)
TASKSET_SCALES = {
    "learning_rate": "log",
    "beta1": "lin1m",
    "beta2": "lin1m",
    "epsilon": "log",
    "l1": "log",
    "l2": "log",
    "linear_decay": "log",
    "exponential_decay": "log",
}
WORST_LOSS, STEP_S = 2.0, 30.0


def lcbench(folder: Path, out: Path) -> None:
    model = onnxruntime.InferenceSession(folder / "model.onnx")
    codes = json.loads((folder / "encoding.json").read_text())["OpenML_task_id"]
    for task in LCBENCH:
        configs = _drawn(np.random.default_rng(task))
        answers = np.stack(
            [_ask(model, codes[str(task)], configs, epoch) for epoch in range(1, STEPS + 2)], axis=1
        )
        total_s = answers[:, 1:, TIME]
        step_s = np.maximum(np.diff(answers[:, :, TIME], axis=1), SHORTEST * total_s[:, -1:] / STEPS)
        _write(out / f"lcbench_{task}.npz", configs, answers[:, 1:, ACCURACY], step_s, LCBENCH_SPACE)


def _drawn(rng: np.random.Generator) -> Floats:
    columns = []
    for _, low, high, scale, kind in LCBENCH_SPACE:
        u = rng.random(CONFIGS)
        values = (
            np.exp(np.log(low) + u * (np.log(high) - np.log(low)))
            if scale == "log"
            else low + u * (high - low)
        )
        columns.append(np.round(values) if kind == "int" else values)
    return np.stack(columns, axis=1)


def _ask(model: Any, task: int, configs: Floats, epoch: int) -> npt.NDArray[np.float32]:
    numbers = np.hstack([np.full((len(configs), 1), epoch), configs]).astype(np.float32)
    asked = {"x_cat": np.full((len(configs), 1), task, np.int32), "x_cont": numbers}
    (answers,) = model.run(None, asked)
    return np.asarray(answers, np.float32)


def taskset(folder: Path, out: Path) -> None:
    for task in TASKSET:
        trainings = json.loads((folder / f"FixedTextRNNClassification_imdb_{task}.json").read_text())
        configs = np.array([[training["hp"][name] for name in TASKSET_SCALES] for training in trainings])
        losses = np.array([training["valid"]["loss"][:STEPS] for training in trainings], dtype=np.float64)
        losses = np.minimum(np.nan_to_num(losses, nan=WORST_LOSS, posinf=WORST_LOSS), WORST_LOSS)
        space = [
            [name, float(column.min()), float(column.max()), scale, "float"]
            for (name, scale), column in zip(TASKSET_SCALES.items(), configs.T, strict=True)
        ]
        _write(out / f"taskset_{task}.npz", configs, -losses, np.full(losses.shape, STEP_S), space)


def _write(path: Path, configs: Floats, metric: Any, step_s: Any, space: list[list[Any]]) -> None:
    columns = {"X": configs, "metric": metric.astype(np.float64), "time": step_s.astype(np.float64)}
    np.savez(path, **columns, meta=json.dumps({"space": space}))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lcbench", type=Path)
    parser.add_argument("--taskset", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.lcbench:
        lcbench(args.lcbench, args.out)
    if args.taskset:
        taskset(args.taskset, args.out)


if __name__ == "__main__":
    main()

"""Estimators of scikit-learn as parts of `SpotSafe`."""

import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy
import pytest
from sklearn.cluster import MiniBatchKMeans
from sklearn.compose import TransformedTargetRegressor
from sklearn.decomposition import IncrementalPCA, LatentDirichletAllocation, MiniBatchDictionaryLearning
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from tuner.training import CheckpointUnreadable, SpotSafe, plain
from tuner.training.estimators import EstimatorState

RANDOM = numpy.random.default_rng(0)
INPUTS = numpy.abs(RANDOM.normal(size=(60, 4)))
NAMES = numpy.array(["few", "many"], dtype=object)[(INPUTS.sum(1) > 3).astype(int)]


def trained(model: Any, times: int) -> Any:
    targets = INPUTS.sum(1) if isinstance(model, SGDRegressor | MLPRegressor) else NAMES
    is_classifier = isinstance(model, SGDClassifier | MLPClassifier | GaussianNB | MultinomialNB)
    more = {"classes": ["few", "many"]} if is_classifier else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(times):
            model.partial_fit(INPUTS, targets, **more)
    return model


def same(value: Any, other: Any) -> bool:
    if isinstance(value, dict):
        return value.keys() == other.keys() and all(same(value[key], other[key]) for key in value)
    if isinstance(value, list | tuple):
        return len(value) == len(other) and all(map(same, value, other))
    if isinstance(value, numpy.ndarray):
        return bool(value.dtype == other.dtype and (value == other).all())
    return bool(value == other)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SGDClassifier(random_state=0, average=True, loss="log_loss"),
        lambda: SGDClassifier(random_state=0, loss="modified_huber"),
        lambda: SGDRegressor(random_state=0, loss="huber"),
        lambda: MLPClassifier(hidden_layer_sizes=(4,), random_state=0),
        lambda: MLPRegressor(hidden_layer_sizes=(4,), random_state=numpy.random.RandomState(1), solver="sgd"),
        GaussianNB,
        MultinomialNB,
        lambda: MiniBatchKMeans(3, random_state=0),
        lambda: IncrementalPCA(2),
        lambda: MiniBatchDictionaryLearning(2, random_state=0),
        lambda: LatentDirichletAllocation(2, random_state=0),
        StandardScaler,
    ],
)
def test_restored_estimator_continues_as_if_it_had_not_been_interrupted(make: Any, tmp_path: Path) -> None:
    whole = trained(make(), 4)
    file, restored = tmp_path / "state.pt", make()
    plain.write(EstimatorState(trained(make(), 2)).state_dict(), file, name="model")
    EstimatorState(restored).load_state_dict(plain.read(file))
    trained(restored, 2)
    expected, continued = (EstimatorState(model).state_dict()["attributes"] for model in (whole, restored))
    different = {
        name: (expected.get(name), continued.get(name))
        for name in {*expected, *continued}
        if not same(expected.get(name), continued.get(name))
    }
    assert different == {}


def pipeline() -> tuple[Pipeline, StandardScaler, SGDClassifier]:
    scaler, model = StandardScaler(), SGDClassifier(random_state=0, loss="log_loss", average=True)
    return Pipeline([("scale", scaler), ("model", model)]), scaler, model


def test_steps_of_a_restored_pipeline_are_trained_through_the_users_references(tmp_path: Path) -> None:
    def train(times: int, parts: tuple[Pipeline, StandardScaler, SGDClassifier]) -> Any:
        whole, scaler, model = parts
        for _ in range(times):
            scaler.partial_fit(INPUTS)
            model.partial_fit(scaler.transform(INPUTS), NAMES, classes=["few", "many"])
        return whole

    uninterrupted, file, parts = train(4, pipeline()), tmp_path / "state.pt", pipeline()
    plain.write(EstimatorState(train(2, pipeline())).state_dict(), file, name="model")
    EstimatorState(parts[0]).load_state_dict(plain.read(file))
    assert [step for _, step in parts[0].steps] == list(parts[1:])
    continued = train(2, parts)
    assert (continued.predict_proba(INPUTS) == uninterrupted.predict_proba(INPUTS)).all()
    assert same(vars(continued["scale"]), vars(uninterrupted["scale"]))


def test_estimator_shares_numpys_global_generator_after_a_restore() -> None:
    state = EstimatorState(trained(MLPClassifier((2,)), 1)).state_dict()
    restored = MLPClassifier((2,))
    EstimatorState(restored).load_state_dict(state)
    assert restored._random_state is numpy.random.mtrand._rand


def test_numpy_generators_are_restored_at_their_place() -> None:
    state, restored = (
        EstimatorState(GaussianNB(priors=numpy.random.default_rng(1))).state_dict(),
        GaussianNB(),
    )
    EstimatorState(restored).load_state_dict(state)
    assert restored.priors.random() == numpy.random.default_rng(1).random()


def test_value_that_is_not_plain_data_is_refused_by_its_place(tmp_path: Path) -> None:
    model = TransformedTargetRegressor(transformer=FunctionTransformer(numpy.log1p))
    with pytest.raises(TypeError, match=r"model\['attributes'\]\['transformer'\].*'func'\] is a numpy.ufunc"):
        plain.write(EstimatorState(model).state_dict(), tmp_path / "state.pt", name="model")


@pytest.mark.parametrize(
    ("marked", "says"),
    [
        (
            {"scikit-learn": "object", "class": "subprocess:Popen", "attributes": {}},
            "not a class of scikit-learn",
        ),
        (
            {"scikit-learn": "object", "class": "sklearn.utils:os", "attributes": {}},
            "not a class of scikit-learn",
        ),
        (
            {"scikit-learn": "loss", "class": "sklearn.pipeline:Pipeline", "arguments": []},
            "not a class of scikit-learn",
        ),
        (
            {"scikit-learn": "generator", "state": {"bit_generator": "test"}},
            "unknown random generator 'test'",
        ),
        ({"scikit-learn": "call"}, "unknown kind of value 'call'"),
    ],
)
def test_forged_state_creates_nothing(marked: dict[str, Any], says: str) -> None:
    state = EstimatorState(GaussianNB()).state_dict()
    model = trained(GaussianNB(), 1)
    before = dict(vars(model))
    with pytest.raises(ValueError, match=says):
        EstimatorState(model).load_state_dict({**state, "attributes": {"a": 1, "priors": marked}})
    assert vars(model) == before


def test_state_of_another_class_or_version_is_refused(tmp_path: Path) -> None:
    state = EstimatorState(GaussianNB()).state_dict()
    with pytest.raises(ValueError, match=r"class sklearn.naive_bayes:GaussianNB, but this process has"):
        EstimatorState(MultinomialNB()).load_state_dict(state)
    with pytest.raises(ValueError, match=r"scikit-learn 0.1, but this process has"):
        EstimatorState(GaussianNB()).load_state_dict({**state, "scikit-learn": "0.1"})
    with SpotSafe(model=GaussianNB(), steps=1, checkpoint_dir=tmp_path) as run:
        for _ in run.steps():
            run.report(loss=1)
    with (
        pytest.raises(CheckpointUnreadable, match="MultinomialNB"),
        SpotSafe(model=MultinomialNB(), checkpoint_dir=tmp_path),
    ):
        pass


def test_lists_and_dictionaries_inside_a_part_are_restored_in_place(tmp_path: Path) -> None:
    for until in (2, 4):
        losses, best = list[float](), defaultdict[str, float](float)
        history: dict[str, Any] = {"losses": losses, "best": [best], "first": losses}
        with SpotSafe(history=history, checkpoint_dir=tmp_path) as run:
            for step in run.steps(until):
                losses.append(step / 2)
                best[f"step {step}"] += step
                if step == 0:
                    history["first"] = losses.copy()
                run.report(loss=losses[-1])
    assert losses == [0, 0.5, 1, 1.5]
    assert best == {f"step {step}": step for step in range(4)}
    assert history == {"losses": losses, "best": [best], "first": [0]}


def test_lists_and_dictionaries_are_restored_in_place(tmp_path: Path) -> None:
    for until in (2, 4):
        scores: list[float] = []
        best: dict[str, float] = {"never": 0.0}
        with SpotSafe(scores=scores, best=best, checkpoint_dir=tmp_path) as run:
            for step in run.steps(until):
                scores.append(step / 2)
                best.clear()
                best[f"step {step}"] = scores[-1]
                run.report(loss=scores[-1])
    assert (scores, best) == ([0, 0.5, 1, 1.5], {"step 3": 1.5})

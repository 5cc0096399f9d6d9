"""Invalid requests, and the pointer that each error must have."""

from typing import Any

Changes = dict[str, Any]
FLOAT = {"type": "float", "low": 0.1, "high": 1.0}
CHOICE = {"type": "categorical", "choices": ["a", "b"]}


def space(**parameters: Any) -> Changes:
    return {"search_space": parameters}


def lr(**changes: Any) -> Changes:
    return space(lr={**FLOAT, **changes})


def budget(**limits: Any) -> Changes:
    return {"budget": limits}


def resources(**wanted: Any) -> Changes:
    return {"resources": wanted}


# Changes that make a valid job invalid, with the expected pointer.
BAD: dict[str, tuple[Changes, str]] = {
    # unknown keys, at every level
    "unknown key": ({"colour": 1}, "/colour"),
    "unknown key with a slash": ({"a/b~c": 1}, "/a~1b~0c"),
    "unknown key of the objective": ({"objective": {"metric": "a", "mode": "max", "x": 1}}, "/objective/x"),
    "unknown key of a parameter": (lr(step=1), "/search_space/lr/step"),
    "unknown key of the fidelity": ({"fidelity": {"maximum": 9}}, "/fidelity/maximum"),
    "unknown key of the budget": (budget(usd=1, eur=1), "/budget/eur"),
    "unknown key of the resources": (resources(memory=1), "/resources/memory"),
    "unknown key of the algorithm": ({"algorithm": {"name": "asha"}}, "/algorithm/name"),
    "unknown key of stop": ({"stop": {"epochs": 1}}, "/stop/epochs"),
    "unknown key of the plateau": (
        {"stop": {"plateau": {"patience_usd": 1, "steps": 1}}},
        "/stop/plateau/steps",
    ),
    "unknown key of the checkpoint": ({"checkpoint": {"every": 1}}, "/checkpoint/every"),
    "unknown key of the warm start": ({"warm_start": {"job": []}}, "/warm_start/job"),
    "unknown key of the window": ({"window": {"start": "1", "end": "2", "day": 1}}, "/window/day"),
    # the search space
    "empty space": (space(), "/search_space"),
    "low above high": (lr(low=2.0), "/search_space/lr/low"),
    "low equals high": (lr(low=1.0), "/search_space/lr/low"),
    "log from 0": (lr(low=0.0, log=True), "/search_space/lr/low"),
    "log from below 0": (lr(low=-1.0, log=True), "/search_space/lr/low"),
    "whole numbers, log from 0": (
        space(n={"type": "int", "low": 0, "high": 9, "log": True}),
        "/search_space/n/low",
    ),
    "fractions where whole numbers belong": (
        space(n={"type": "int", "low": 0.5, "high": 9}),
        "/search_space/n/low",
    ),
    "whole numbers beyond 2^53": (space(n={"type": "int", "low": 0, "high": 2**53 + 1}), "/search_space/n"),
    "whole numbers of 400 digits": (space(n={"type": "int", "low": 0, "high": 10**400}), "/search_space/n"),
    "floats of 400 digits": (lr(high=10**400), "/search_space/lr/high"),
    "a range wider than a float": (lr(low=-1.7e308, high=1.7e308), "/search_space/lr/high"),
    "no choices": (space(o={"type": "categorical", "choices": []}), "/search_space/o/choices"),
    "a choice twice": (space(o={"type": "categorical", "choices": ["a", "a"]}), "/search_space/o/choices"),
    "a list as a choice": (space(o={"type": "categorical", "choices": [[1]]}), "/search_space/o/choices/0"),
    "no type": (space(lr={"low": 0, "high": 1}), "/search_space/lr"),
    "unknown type": (space(lr={**FLOAT, "type": "loguniform"}), "/search_space/lr"),
    "no low": (space(lr={"type": "float", "high": 1.0}), "/search_space/lr/low"),
    "a parameter with a slash": (space(**{"a/b": {**FLOAT, "low": 2.0}}), "/search_space/a~1b/low"),
    "when on what is not there": (lr(when={"o": ["a"]}), "/search_space/lr/when/o"),
    "when on an impossible value": (
        space(o=CHOICE, lr={**FLOAT, "when": {"o": ["c"]}}),
        "/search_space/lr/when/o",
    ),
    "when on no value": (space(o=CHOICE, lr={**FLOAT, "when": {"o": []}}), "/search_space/lr/when/o"),
    "when on true instead of 1": (
        space(o={"type": "categorical", "choices": [1, 2]}, lr={**FLOAT, "when": {"o": [True]}}),
        "/search_space/lr/when/o",
    ),
    "when on itself": (lr(when={"lr": [0.5]}), "/search_space/lr/when"),
    "when in a circle": (
        space(a={**CHOICE, "when": {"b": ["a"]}}, b={**CHOICE, "when": {"a": ["a"]}}),
        "/search_space/b/when",
    ),
    # the trainable
    "a trainable that cannot be imported": ({"trainable": "trainables.nowhere:train"}, "/trainable"),
    "a trainable without such an attribute": ({"trainable": "trainables.digits_mlp:fit"}, "/trainable"),
    "a trainable that cannot be called": ({"trainable": "trainables.digits_mlp:SEARCH_SPACE"}, "/trainable"),
    "a module that is not allowed": ({"trainable": "os:system"}, "/trainable"),
    "a module that begins like an allowed one": ({"trainable": "trainables_of_mine:train"}, "/trainable"),
    "a trainable without a colon": ({"trainable": "trainables.digits_mlp.train"}, "/trainable"),
    "a trainable with a space": ({"trainable": "trainables.digits_mlp:train()"}, "/trainable"),
    "an empty trainable": ({"trainable": ""}, "/trainable"),
    # the budget
    "no budget": (budget(), "/budget"),
    "nothing but trials": (budget(trials=3), "/budget"),
    "no dollars": (budget(usd=0), "/budget/usd"),
    "dollars below 0": (budget(usd=-1), "/budget/usd"),
    "seven decimals": (budget(usd=0.1234567), "/budget/usd"),
    "1e308 dollars": (budget(usd=1e308), "/budget/usd"),
    "dollars of 400 digits": (budget(usd=10**400), "/budget/usd"),
    "less than a step costs": (budget(usd=0.000001), "/budget/usd"),
    "dollars as text": (budget(usd="5"), "/budget/usd"),
    "true for a dollar": (budget(usd=True), "/budget/usd"),
    "no GPU-hours": (budget(usd=1, gpu_hours=0), "/budget/gpu_hours"),
    "GPU-hours below 0": (budget(usd=1, gpu_hours=-1), "/budget/gpu_hours"),
    "1e308 GPU-hours": (budget(usd=1, gpu_hours=1e308), "/budget/gpu_hours"),
    "GPU-hours for a job without GPUs": (budget(gpu_hours=1), "/budget/usd"),
    "5 parsecs": (budget(usd=1, wall_clock="5 parsecs"), "/budget/wall_clock"),
    "a duration below 0": (budget(usd=1, wall_clock=-5), "/budget/wall_clock"),
    "no time": (budget(usd=1, wall_clock="0s"), "/budget/wall_clock"),
    "an endless time": (budget(usd=1, wall_clock=1e300), "/budget/wall_clock"),
    "no trials": (budget(usd=1, trials=0), "/budget/trials"),
    "half a trial": (budget(usd=1, trials=0.5), "/budget/trials"),
    "trials beyond count": (budget(usd=1, trials=10**30), "/budget/trials"),
    "an unknown end": (budget(usd=1, on_exhausted="explode"), "/budget/on_exhausted"),
    # the resources
    "more CPUs than a node has": (resources(cpus=3), "/resources/cpus"),
    "GPUs that no node has": (resources(gpus=1), "/resources/gpus"),
    "an instance type that is not there": (
        resources(instance_type="p5.48xlarge"),
        "/resources/instance_type",
    ),
    "a region that is not there": (resources(region="mars-1"), "/resources/region"),
    "hardly a CPU": (resources(cpus=1e-300), "/resources/cpus"),
    "no CPU": (resources(cpus=0), "/resources/cpus"),
    "CPUs below 0": (resources(cpus=-1), "/resources/cpus"),
    "one and a half GPUs": (resources(gpus=1.5), "/resources/gpus"),
    "an unknown market": (resources(market="futures"), "/resources/market"),
    "no trial at once": (resources(max_concurrent_trials=0), "/resources/max_concurrent_trials"),
    # names
    "an empty name": ({"name": ""}, "/name"),
    "a path for a name": ({"name": "../../etc/passwd"}, "/name"),
    "a name with a slash": ({"name": "a/b"}, "/name"),
    "a hidden name": ({"name": ".digits"}, "/name"),
    "a name with a line break": ({"name": "a\nb"}, "/name"),
    "a name with NUL": ({"name": "a\u0000b"}, "/name"),
    "a name of 101 letters": ({"name": "a" * 101}, "/name"),
    "a number for a name": ({"name": 5}, "/name"),
    "null for a name": ({"name": None}, "/name"),
    # the rest
    "an empty metric": ({"objective": {"metric": " ", "mode": "max"}}, "/objective/metric"),
    "an unknown mode": ({"objective": {"metric": "acc", "mode": "best"}}, "/objective/mode"),
    "constants that clash": ({"constants": {"lr": 1}}, "/constants"),
    "constants that are a list": ({"constants": [1]}, "/constants"),
    "constants of 200 kB": ({"constants": {"text": "a" * 200_000}}, "/constants"),
    "max below min": ({"fidelity": {"min": 9, "max": 3}}, "/fidelity/max"),
    "no step": ({"fidelity": {"min": 0}}, "/fidelity/min"),
    "a reduction factor of 1": ({"fidelity": {"reduction_factor": 1}}, "/fidelity/reduction_factor"),
    "an unknown scheduler": ({"algorithm": {"scheduler": "luck"}}, "/algorithm/scheduler"),
    "a seed beyond 64 bits": ({"algorithm": {"seed": 2**63}}, "/algorithm/seed"),
    "no checkpoint": ({"checkpoint": {"keep": 0}}, "/checkpoint/keep"),
    "an interval of words": ({"checkpoint": {"interval": "often"}}, "/checkpoint/interval"),
    "an interval of 0": ({"checkpoint": {"interval": 0}}, "/checkpoint/interval"),
    "no patience": ({"stop": {"plateau": {"patience_usd": 0}}}, "/stop/plateau/patience_usd"),
    "a warm start from a job that is not there": (
        {"warm_start": {"jobs": ["job_1"]}},
        "/warm_start/jobs/0",
    ),
    "a window that never opens": ({"window": {"start": "22:00", "end": "22:00"}}, "/window/end"),
    "a window of no time": ({"window": {"start": "22", "end": "06:00"}}, "/window/start"),
    "an unknown time zone": (
        {"window": {"start": "22:00", "end": "06:00", "timezone": "Europe/Berln"}},
        "/window/timezone",
    ),
    "a tag with a colon in its key": ({"tags": {"a:b": "c"}}, "/tags/a:b"),
    "a tag without a key": ({"tags": {"": "c"}}, "/tags/"),
    "a tag of 301 letters": ({"tags": {"a": "b" * 301}}, "/tags/a"),
    "a number for a tag": ({"tags": {"a": 1}}, "/tags/a"),
    "51 tags": ({"tags": {str(i): "" for i in range(51)}}, "/tags"),
}

# Text that is not valid JSON, but that many parsers accept.
ODD: dict[str, tuple[str, Any, str]] = {
    "NaN dollars": ('{"usd": NaN}', "budget", "/budget/usd"),
    "infinite dollars": ('{"usd": Infinity}', "budget", "/budget/usd"),
    "NaN GPU-hours": ('{"usd": 1, "gpu_hours": NaN}', "budget", "/budget/gpu_hours"),
    "infinite GPU-hours": ('{"usd": 1, "gpu_hours": -Infinity}', "budget", "/budget/gpu_hours"),
    "NaN seconds": ('{"usd": 1, "wall_clock": NaN}', "budget", "/budget/wall_clock"),
    "NaN for low": ('{"lr": {"type": "float", "low": NaN, "high": 1}}', "search_space", "/search_space/lr"),
    "infinite high": (
        '{"lr": {"type": "float", "low": 0, "high": Infinity}}',
        "search_space",
        "/search_space/lr",
    ),
    "NaN as a choice": (
        '{"o": {"type": "categorical", "choices": [NaN]}}',
        "search_space",
        "/search_space/o/choices",
    ),
    "NaN CPUs": ('{"cpus": NaN}', "resources", "/resources/cpus"),
    "infinite GPUs": ('{"gpus": Infinity}', "resources", "/resources/gpus"),
    "NaN for a target": (
        '{"metric": "acc", "mode": "max", "target": NaN}',
        "objective",
        "/objective/target",
    ),
    "NaN in constants": ('{"a": [1, {"b": NaN}]}', "constants", "/constants"),
    "NaN for a gain": (
        '{"plateau": {"patience_usd": 1, "min_gain": NaN}}',
        "stop",
        "/stop/plateau/min_gain",
    ),
}

ERRORS = {
    "trainables.nowhere:train": "ModuleNotFoundError: no module",
    "trainables.digits_mlp:fit": "AttributeError: no attribute",
    "trainables.digits_mlp:SEARCH_SPACE": "TypeError: not callable",
}

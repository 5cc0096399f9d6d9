"""Describe the keys of a job file from its schema."""

import types
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from tools.reference.words import MADE, doc, one_line, table
from tuner.schemas import job as shapes
from tuner.schemas.plan import CandidateMachine, CatalogueFilter, MachineNeeds, Pilot, Planning

HEAD = f"""# The job file
{MADE}

`tuner submit` and `tuner plan` read a job from a YAML file. [REST](rest.md) accepts the same fields as JSON. Unknown keys are refused, and so are
values of another type: `"5"` is a string, not a number. A duration is `90s`, `15m`, `6h`, `2d` or a number of seconds. Money is in US dollars.

```yaml
name: digits
trainable: trainables.digits_mlp:train
objective: {{metric: val_accuracy, mode: max}}
search_space:
  learning_rate: {{type: float, low: 1.0e-3, high: 0.3, log: true}}
budget: {{usd: 0.01}}
```
"""
UNITS = {
    "usd": "US dollars",
    "gpu_hours": "GPU-hours",
    "wall_clock": "counted while the job runs",
    "trials": "trials",
    "patience_usd": "US dollars",
    "patience": "steps",
    "max_cost_usd": "US dollars",
    "min_gain": "in the metric's unit",
    "target": "in the metric's unit",
    "interval": "or `auto`",
    "keep": "checkpoints per trial",
    "min": "steps",
    "max": "steps",
    "cpus": "logical CPUs per trial",
    "gpus": "GPUs per trial",
    "max_concurrent_trials": "trials at once",
    "pack": "trials per worker",
    "step_seconds": "seconds",
    "setup_seconds": "seconds",
    "restore_seconds": "seconds",
    "checkpoint_seconds": "seconds",
    "step_spread": "standard deviation of the logarithm",
    "start": "HH:MM",
    "end": "HH:MM",
    "timezone": "IANA name",
    "usd_per_hour": "US dollars an hour",
    "spot_usd_per_hour": "US dollars an hour",
    "memory_gib": "GiB",
    "gpu_memory_gib": "GiB",
    "deadline": "from now, or a time",
    "trainable": "`module:function`",
}
SECTIONS: list[tuple[str, type[BaseModel]]] = [
    ("objective", shapes.Objective),
    ("search_space: float", shapes.FloatParameter),
    ("search_space: int", shapes.IntParameter),
    ("search_space: categorical", shapes.CategoricalParameter),
    ("search_space: prior", shapes.Prior),
    ("fidelity", shapes.Fidelity),
    ("budget", shapes.Budget),
    ("resources", shapes.Resources),
    ("algorithm", shapes.Algorithm),
    ("stop.plateau", shapes.Plateau),
    ("stop.worth", shapes.Worth),
    ("stop.trial", shapes.TrialStop),
    ("confirm", shapes.Confirm),
    ("start: with a known metric", shapes.KnownResult),
    ("checkpoint", shapes.Checkpoint),
    ("artifacts", shapes.Artifacts),
    ("warm_start", shapes.WarmStart),
    ("teacher", shapes.Teacher),
    ("window", shapes.Window),
    ("planning", Planning),
    ("planning.pilot", Pilot),
    ("planning.candidates", CandidateMachine),
    ("planning.catalogue", CatalogueFilter),
    ("planning.needs", MachineNeeds),
]
NAMED = {
    shapes.Duration: "duration",
    shapes.Duration | None: "duration",
    list[shapes.Choice]: "list of values",
    list[shapes.Start]: "list of configurations",
    dict[str, shapes.Value]: "parameter → value",
    shapes.When: "parameter → list of values",
}


def page() -> str:
    parts = [HEAD, "## All keys\n", _table(shapes.JobRequest)]
    parts.append(
        "A file may also have a section `planning`. [`tuner plan`](../plans.md) reads it and `tuner submit` ignores it.\n"
    )
    for name, model in SECTIONS:
        description = one_line(doc(model))
        parts += [f"## {name}\n", *([description + "\n"] if description else []), _table(model)]
    return "\n".join(parts)


def _table(model: type[BaseModel]) -> str:
    rows = [
        [f"`{field.alias or name}`", type_of(field.annotation), _unit(model, name), default_of(field)]
        for name, field in model.model_fields.items()
    ]
    return table(["key", "type", "unit", "default"], rows) + "\n"


def _unit(model: type[BaseModel], name: str) -> str:
    is_list = model is shapes.JobRequest and name == "start"
    return "" if is_list else UNITS.get(name, "")


def default_of(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value: Any = field.default
    if field.default_factory is not None:
        made = field.default_factory()  # type: ignore[call-arg]
        value = None if isinstance(made, BaseModel) else made
        if value is None:
            return "as below"
    if value is PydanticUndefined:
        return ""
    return "null" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def type_of(annotation: Any) -> str:
    """Return the type in JSON's terms."""
    plain = {
        int: "integer",
        float: "number",
        str: "text",
        bool: "true or false",
        type(None): "null",
        Any: "any",
    }
    if annotation in plain:
        return plain[annotation]
    if annotation in NAMED:
        return NAMED[annotation]
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{literal}`" for literal in inner)
    if origin in (Union, types.UnionType):
        kinds = [type_of(member) for member in inner if member is not type(None)]
        return " or ".join(dict.fromkeys(kinds))
    if origin is list:
        return f"list of {type_of(inner[0])}".replace("list of mapping", "list of mappings")
    if origin is dict:
        return f"{type_of(inner[0])} → {type_of(inner[1])}"
    if origin is not None and inner:  # Annotated
        return type_of(inner[0])
    name = getattr(annotation, "__name__", str(annotation))
    return "parameter" if name.endswith("Parameter") else "mapping"

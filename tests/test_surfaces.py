"""Paths, queries, fields, commands and names that clients rely on must not disappear."""

import typer
from typer.main import get_command

import tuner
from tests import fakes
from tuner.cli.main import app
from tuner.settings import release

ENDPOINTS = {
    "/v1/jobs": "get post",
    "/v1/pilots": "post",
    "/v1/plans": "post",
    "/v1/estimates": "post",
    "/v1/jobs/{job}": "get patch",
    "/v1/jobs/{job}/pause": "post",
    "/v1/jobs/{job}/resume": "post",
    "/v1/jobs/{job}/cancel": "post",
    "/v1/jobs/{job}/trials": "get",
    "/v1/jobs/{job}/trials/{trial}": "get",
    "/v1/jobs/{job}/trials/{trial}/logs": "get",
    "/v1/jobs/{job}/exports": "get post",
    "/v1/jobs/{job}/exports/{export}": "get",
    "/v1/jobs/{job}/exports/{export}/variants/{variant}": "get",
    "/v1/jobs/{job}/curves": "get",
    "/v1/jobs/{job}/best": "get",
    "/v1/jobs/{job}/pareto": "get",
    "/v1/jobs/{job}/bill": "get",
    "/v1/jobs/{job}/report": "get",
    "/v1/jobs/{job}/advice": "get",
    "/v1/jobs/{job}/replay": "get",
    "/v1/jobs/{job}/ledger": "get",
    "/v1/jobs/{job}/events": "get",
    "/v1/best": "get",
    "/v1/spend": "get",
    "/v1/budgets": "get",
    "/v1/budgets/{name}": "delete get put",
    "/v1/quota": "get put",
    "/v1/prices": "get",
    "/v1/trainables": "get",
    "/v1/trainables/{trainable}": "get",
    "/v1/packages": "get post",
    "/v1/packages/{package}": "get",
    "/v1/session": "post",
    "/v1/whoami": "get",
    "/v1/projects": "get post",
    "/v1/projects/{project}": "get",
    "/v1/users": "get",
    "/v1/users/{user}": "patch",
    "/v1/members": "get",
    "/v1/members/{user}": "delete put",
    "/v1/keys": "get post",
    "/v1/keys/{key}/rotate": "post",
    "/v1/keys/{key}": "delete",
    "/healthz": "get",
    "/readyz": "get",
    "/metrics": "get",
}
QUERIES = {
    "/v1/jobs": {"state", "tag", "limit", "cursor"},
    "/v1/jobs/{job}/trials": {"sort", "limit", "cursor"},
    "/v1/jobs/{job}/trials/{trial}/logs": {"attempt", "tail", "after"},
    "/v1/jobs/{job}/best": {
        "max_cost_usd",
        "max_gpu_hours",
        "max_duration",
        "market",
        "instance_type",
        "region",
        "forecast",
    },
    "/v1/jobs/{job}/exports/{export}": {"requests_per_second", "start", "instance_type"},
    "/v1/jobs/{job}/curves": {"metric"},
    "/v1/jobs/{job}/replay": {"scheduler", "sampler"},
    "/v1/jobs/{job}/pareto": {"market", "instance_type", "region"},
    "/v1/best": {
        "trainable",
        "metric",
        "max_cost_usd",
        "max_gpu_hours",
        "max_duration",
        "market",
        "instance_type",
        "region",
    },
    "/v1/spend": {"group_by", "since", "until", "timezone"},
    "/v1/packages": {"limit", "cursor"},
    "/v1/prices": {"cloud", "region", "zone", "instance_type", "accelerator", "market", "limit"},
}
COMMANDS = {
    "serve": set[str](),
    "submit": {"--wait", "--json"},
    "pilot": {"--usd", "--wait", "--json"},
    "plan": {"--pilot-usd", "--step-seconds", "--steps-from", "--deadline", "--json"},
    "estimate": {"--samples", "--throughput", "--deadline", "--json"},
    "jobs": {"--json"},
    "watch": {"--json"},
    "best": {
        "--max-cost-usd",
        "--max-gpu-hours",
        "--max-duration",
        "--market",
        "--instance-type",
        "--region",
        "--json",
    },
    "best-of-all": {"--max-cost-usd", "--instance-type", "--json"},
    "pareto": {"--market", "--instance-type", "--region", "--json"},
    "trials": {"--json"},
    "logs": {"--attempt", "--tail", "--follow", "--node", "--json"},
    "export": {"--trial", "--formats", "--max-cost-usd", "--max-drop", "--to", "--json"},
    "bill": {"--json"},
    "curves": {"--metric", "--json"},
    "report": {"--json"},
    "advice": {"--json"},
    "spend": {"--by", "--since", "--until", "--timezone", "--csv", "--json"},
    "pause": {"--json"},
    "resume": {"--json"},
    "cancel": {"--json"},
    "topup": {"--usd", "--json"},
    "priority": {"--json"},
    "prices": {"--cloud", "--region", "--accelerator", "--market", "--update", "--json"},
    "demo": set[str](),
    "whoami": {"--json"},
    "projects": set[str](),
    "users": set[str](),
    "members": set[str](),
    "keys": set[str](),
    "doctor": {"--json"},
    "replay": {"--with", "--json"},
    "migrate": {"--to", "--json"},
    "backup": {"--json"},
    "restore": {"--replace", "--nothing-spent", "--json"},
    "simulate": {
        "--table",
        "--budget-trainings",
        "--workers",
        "--seed",
        "--scheduler",
        "--sampler",
        "--startup-steps",
        "--preemptions",
        "--json",
    },
}


SHAPES = {
    "Job": ["revision", "id", "state", "stop_reason", "spend", "budget", "progress", "best", "links"],
    "Trial": ["id", "config", "state", "steps", "metric", "cost_usd", "gpu_hours", "attempts", "preemptions"],
    "Problem": ["type", "title", "status", "detail", "errors"],
    "Spend": ["usd", "gpu_hours", "held_usd"],
    "Links": ["ray_dashboard", "optuna_dashboard", "self"],
}


def test_rest_keeps_its_endpoints_queries_and_fields() -> None:
    schema = fakes.shared_app().openapi()
    assert schema["info"]["title"] == "tuner"
    paths = schema["paths"]
    for path, verbs in ENDPOINTS.items():
        assert set(paths[path]) >= set(verbs.split()), path
    for path, names in QUERIES.items():
        assert {parameter["name"] for parameter in paths[path]["get"]["parameters"]} >= names, path
    for name, fields in SHAPES.items():
        assert set(schema["components"]["schemas"][name]["properties"]) >= set(fields), name


def test_endpoints_under_v1_and_no_others_require_a_key() -> None:
    for path, verbs in fakes.shared_app().openapi()["paths"].items():
        for verb, endpoint in verbs.items():
            assert ("security" in endpoint) == path.startswith("/v1"), (verb, path)


def test_command_line_keeps_its_commands_and_options() -> None:
    group = get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    assert set(group.commands) >= set(COMMANDS)
    for name, options in COMMANDS.items():
        taken = {opt for parameter in group.commands[name].params for opt in parameter.opts}
        assert taken >= options, name


def test_package_exports_its_clients_only() -> None:
    assert tuner.__all__ == ["AsyncClient", "Client", "__version__"]
    assert tuner.Client.__module__ == tuner.AsyncClient.__module__ == "tuner.client"
    assert tuner.__version__.count(".") == 2
    assert release() == tuner.__version__
    assert not hasattr(tuner, "Tuner")

"""The surfaces that clients rely on: paths, commands and names that are there stay there."""

import typer
from typer.main import get_command

import tuner
from tests import fakes
from tuner.cli.main import app
from tuner.settings import release

ENDPOINTS = {
    ("post", "/v1/jobs"),
    ("post", "/v1/pilots"),
    ("post", "/v1/plans"),
    ("post", "/v1/estimates"),
    ("get", "/v1/jobs"),
    ("get", "/v1/jobs/{job}"),
    ("patch", "/v1/jobs/{job}"),
    ("post", "/v1/jobs/{job}/pause"),
    ("post", "/v1/jobs/{job}/resume"),
    ("post", "/v1/jobs/{job}/cancel"),
    ("get", "/v1/jobs/{job}/trials"),
    ("get", "/v1/jobs/{job}/trials/{trial}"),
    ("get", "/v1/jobs/{job}/trials/{trial}/logs"),
    ("get", "/v1/jobs/{job}/curves"),
    ("get", "/v1/jobs/{job}/best"),
    ("get", "/v1/jobs/{job}/pareto"),
    ("get", "/v1/jobs/{job}/bill"),
    ("get", "/v1/jobs/{job}/report"),
    ("get", "/v1/jobs/{job}/advice"),
    ("get", "/v1/jobs/{job}/ledger"),
    ("get", "/v1/jobs/{job}/events"),
    ("get", "/v1/best"),
    ("get", "/v1/spend"),
    ("get", "/v1/budgets"),
    ("get", "/v1/budgets/{name}"),
    ("put", "/v1/budgets/{name}"),
    ("delete", "/v1/budgets/{name}"),
    ("get", "/v1/quota"),
    ("put", "/v1/quota"),
    ("get", "/v1/prices"),
    ("get", "/v1/trainables"),
    ("post", "/v1/packages"),
    ("get", "/v1/packages"),
    ("get", "/v1/packages/{package}"),
    ("post", "/v1/session"),
    ("get", "/v1/whoami"),
    ("get", "/v1/projects"),
    ("post", "/v1/projects"),
    ("get", "/v1/projects/{project}"),
    ("get", "/v1/users"),
    ("patch", "/v1/users/{user}"),
    ("get", "/v1/members"),
    ("put", "/v1/members/{user}"),
    ("delete", "/v1/members/{user}"),
    ("get", "/v1/keys"),
    ("post", "/v1/keys"),
    ("post", "/v1/keys/{key}/rotate"),
    ("delete", "/v1/keys/{key}"),
    ("get", "/healthz"),
    ("get", "/readyz"),
    ("get", "/metrics"),
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
    "logs": {"--attempt", "--tail", "--follow", "--json"},
    "bill": {"--json"},
    "curves": {"--json"},
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
    "migrate": {"--to", "--json"},
    "backup": {"--json"},
    "restore": {"--replace", "--json"},
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
JOB = ["revision", "id", "state", "stop_reason", "spend", "budget", "progress", "best", "links"]
TRIAL = ["id", "config", "state", "steps", "metric", "cost_usd", "gpu_hours", "attempts", "preemptions"]
PROBLEM = ["type", "title", "status", "detail", "errors"]


def schema() -> dict[str, dict[str, dict[str, dict[str, dict[str, dict[str, object]]]]]]:
    found = fakes.shared_app().openapi()
    assert found["info"]["title"] == "tuner"
    return found


def test_every_endpoint_is_there_and_told_of() -> None:
    paths = schema()["paths"]
    assert {(verb, path) for path, verbs in paths.items() for verb in verbs} >= ENDPOINTS


def test_every_endpoint_says_what_it_is() -> None:
    for path, verbs in schema()["paths"].items():
        for verb, told in verbs.items():
            assert told["summary"], (verb, path)
            assert told["responses"]


def test_lists_take_the_queries_that_clients_send() -> None:
    paths = schema()["paths"]
    for path, names in QUERIES.items():
        taken = {one["name"] for one in paths[path]["get"]["parameters"]}  # type: ignore[index]
        assert taken >= names


def test_answers_have_the_fields_that_clients_read() -> None:
    shapes = schema()["components"]["schemas"]
    for name, fields in (("Job", JOB), ("Trial", TRIAL), ("Problem", PROBLEM)):
        assert set(shapes[name]["properties"]) >= set(fields)
    for name, fields in (
        ("Spend", ["usd", "gpu_hours", "held_usd"]),
        ("Links", ["ray_dashboard", "optuna_dashboard", "self"]),
    ):
        assert set(shapes[name]["properties"]) >= set(fields)


def test_the_key_is_told_of_under_v1_and_only_there() -> None:
    for path, verbs in schema()["paths"].items():
        for verb, told in verbs.items():
            assert ("security" in told) == path.startswith("/v1"), (verb, path)


def test_every_command_and_its_options_are_there() -> None:
    group = get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    assert set(group.commands) >= set(COMMANDS)
    for name, options in COMMANDS.items():
        taken = {opt for parameter in group.commands[name].params for opt in parameter.opts}
        assert taken >= options, name


def test_every_command_says_what_it_is() -> None:
    group = get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    assert all(command.help for command in group.commands.values())


def test_the_package_offers_its_client_and_nothing_by_accident() -> None:
    assert tuner.__all__ == ["AsyncClient", "Client", "__version__"]
    assert tuner.Client.__module__ == tuner.AsyncClient.__module__ == "tuner.client"
    assert tuner.__version__.count(".") == 2
    assert release() == tuner.__version__
    assert not hasattr(tuner, "Tuner")

"""Arguments and options that several commands share, with shell completion.

Shell completion reads ids from the service by one request with a short timeout. If the request fails, nothing is offered
and no error is printed.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote, urlsplit

import typer

from tuner.domain.job import JOB_STATES
from tuner.settings import Settings, is_loopback

TIMEOUT_S = 1.0
SORTS = ("number", "metric", "-metric", "cost_usd", "-cost_usd", "steps", "-steps")
Offered = list[tuple[str, str]]


def jobs(ctx: typer.Context, incomplete: str) -> Offered:
    """Offer the ids of the newest jobs that begin with `incomplete`, with their names and states as hints."""
    return _those(
        [(job["id"], f"{job['name']}, {job['state']}") for job in _items(ctx, "/v1/jobs")], incomplete
    )


def trials(ctx: typer.Context, incomplete: str) -> Offered:
    """Offer the ids of trials that begin with `incomplete`. The trials are those of the job that is already on the command line."""
    # While the value of an option is being completed, the parser can leave the job's id among the unparsed words instead of adding it to
    # `params`, so both are searched.
    rest = (word for word in ctx.args if word.startswith("job_"))
    job = ctx.params.get("job") or ctx.params.get("what") or next(rest, None)
    if not job:
        return []
    items = _items(ctx, f"/v1/jobs/{quote(job, safe='')}/trials")
    return _those(
        [(trial["id"], f"{trial['state']} at step {trial['steps']}") for trial in items], incomplete
    )


def states(incomplete: str) -> list[str]:
    return [state for state in JOB_STATES if state.startswith(incomplete)]


def sorts(incomplete: str) -> list[str]:
    return [sort for sort in SORTS if sort.startswith(incomplete)]


def _those(offered: Offered, incomplete: str) -> Offered:
    return [(name, hint) for name, hint in offered if name.startswith(incomplete)]


def _items(ctx: typer.Context, path: str) -> list[Mapping[str, Any]]:
    """Return the items on the first page of a listing, such as the jobs of the project that `--project` or the settings name.

    Return [] on any error, because an error message would break the line that the user is typing.
    """
    import urllib.request  # imported here because only completions need it, and it would slow down commands

    try:
        settings = Settings.from_env()
        key = settings.given_api_key or settings.api_key_path.read_text().strip()
        headers = {"Authorization": f"Bearer {key}"}
        if project := ctx.find_root().params.get("project") or settings.project:
            headers["Tuner-Project"] = project
        request = urllib.request.Request(f"{settings.url}{path}?limit=100", headers=headers)
        # As in tuner.client.http.direct, which is slow to import: no proxy gets the key for a service on this machine.
        proxies: dict[str, str] | None = {} if is_loopback(urlsplit(settings.url).hostname or "") else None
        opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            items = json.load(answer)["items"]
        return items if isinstance(items, list) else []
    except Exception:
        return []


def parsed_config(config: str | None) -> dict[str, Any]:
    """Return the configuration that an option `--config` gives as JSON. Raise BadParameter if it is not an object."""
    try:
        values = json.loads(config or "{}")
    except ValueError as error:
        raise typer.BadParameter(f"the configuration is not JSON: {error}", param_hint="--config") from error
    if not isinstance(values, dict):
        raise typer.BadParameter(
            "must be an object, such as '{\"learning_rate\": 0.01}'", param_hint="--config"
        )
    return values


JobId = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="Job id: job_…",
        show_default=False,
        autocompletion=jobs,
    ),
]
TrialId = Annotated[
    str,
    typer.Argument(
        metavar="TRIAL",
        help="Trial id: trial_…",
        show_default=False,
        autocompletion=trials,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

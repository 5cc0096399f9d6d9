"""Shell completion of arguments.

Ids come from one request to the service with a short timeout. If it fails, the completion is empty and prints no error.
"""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import typer

from tuner.settings import Settings

TIMEOUT_S = 1.0
STATES = ("queued", "running", "paused", "succeeded", "cancelled", "failed")
SORTS = ("number", "metric", "-metric", "cost_usd", "-cost_usd", "steps", "-steps")
Offered = list[tuple[str, str]]


def jobs(incomplete: str) -> Offered:
    """Complete job ids with the newest jobs. Names and states are shown as hints."""
    return _those([(job["id"], f"{job['name']}, {job['state']}") for job in _items("/v1/jobs")], incomplete)


def trials(ctx: typer.Context, incomplete: str) -> Offered:
    """Complete trial ids of the job that is already on the command line."""
    rest = (
        word for word in ctx.args if word.startswith("job_")
    )  # `params` is incomplete while the value of an option is missing
    job = ctx.params.get("job") or ctx.params.get("what") or next(rest, None)
    if not job:
        return []
    found = _items(f"/v1/jobs/{quote(job, safe='')}/trials")
    return _those(
        [(trial["id"], f"{trial['state']} at step {trial['steps']}") for trial in found], incomplete
    )


def states(incomplete: str) -> list[str]:
    return [state for state in STATES if state.startswith(incomplete)]


def sorts(incomplete: str) -> list[str]:
    return [sort for sort in SORTS if sort.startswith(incomplete)]


def _those(found: Offered, incomplete: str) -> Offered:
    return [one for one in found if one[0].startswith(incomplete)]


def _items(path: str) -> list[Mapping[str, Any]]:
    """Return the items of a list of the service, or [] on any error, because a shell has no place to show errors of completion."""
    import urllib.request  # Imported here because commands do not need it.

    try:
        settings = Settings.from_env()
        key = settings.given_api_key or settings.api_key_path.read_text().strip()
        request = urllib.request.Request(
            f"{settings.url}{path}?limit=100", headers={"Authorization": f"Bearer {key}"}
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            items = json.load(answer)["items"]
        return items if isinstance(items, list) else []
    except Exception:
        return []

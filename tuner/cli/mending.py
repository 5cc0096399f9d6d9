"""What to do about what the service refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuner.settings import Settings

if TYPE_CHECKING:
    from tuner.client import ApiError


def what_to_do(error: ApiError) -> list[str]:
    """Lines to be told below the problem; none where it says it itself."""
    if error.status == 401:
        return [_about_the_key(Settings.from_env())]
    return []


def _about_the_key(settings: Settings) -> str:
    path = settings.api_key_path
    if settings.given_api_key:
        return f"TUNER_API_KEY holds another key than the service at {settings.url}; the service keeps its own in $TUNER_HOME/api_key"
    if path.exists():
        return (
            f"the key in {path} is not that of the service at {settings.url}; set TUNER_HOME to the home that it was"
            " started with, or TUNER_API_KEY to its key"
        )
    return (
        f"there is no key in {path}; set TUNER_HOME to the home that the service was started with, or TUNER_API_KEY"
        " to its key"
    )

"""Check the tags of jobs and of shared budgets."""

from collections.abc import Mapping

from tuner.domain.errors import Fault

MAX_TAGS = 50


def tag_faults(tags: Mapping[str, str]) -> list[Fault]:
    if len(tags) > MAX_TAGS:
        return [Fault("/tags", f"give at most {MAX_TAGS} tags")]
    return [
        Fault(
            f"/tags/{key.replace('~', '~0').replace('/', '~1')}",
            "keys have 1 to 100 letters without a colon, values up to 300",
        )
        for key, value in tags.items()
        if not 1 <= len(key) <= 100 or ":" in key or len(value) > 300 or not (key + value).isprintable()
    ]

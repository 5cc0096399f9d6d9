"""docs/reference is what the code says today."""

import pytest

from tests import fakes
from tools.reference.pages import FOLDER, made
from tuner.schemas.job import JobRequest


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return made()


@pytest.mark.parametrize("name", ["cli.md", "rest.md", "python.md", "job-file.md"])
def test_the_page_is_up_to_date(name: str, pages: dict[str, str]) -> None:
    assert (FOLDER / name).read_text() == pages[name], "run `make docs`, and commit what it changed"


def test_every_call_and_every_key_is_told(pages: dict[str, str]) -> None:
    for path, verbs in fakes.shared_app().openapi()["paths"].items():
        for verb in verbs:
            assert f"## {verb.upper()} {path}\n" in pages["rest.md"]
    for key in JobRequest.model_fields:
        assert f"| `{key}` |" in pages["job-file.md"]


def test_what_is_internal_is_not_told(pages: dict[str, str]) -> None:
    assert "model_post_init" not in pages["python.md"]
    assert "Generator[" not in pages["python.md"]

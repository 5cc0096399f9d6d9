"""The generated reference covers the public interface and nothing internal. `make lint` checks that docs/reference is up to date."""

from tests import fakes
from tools.reference.pages import made
from tuner.schemas.job import JobRequest


def test_reference_lists_every_endpoint_and_job_key_and_nothing_internal() -> None:
    pages = made()
    for path, verbs in fakes.shared_app().openapi()["paths"].items():
        for verb in verbs:
            assert f"## {verb.upper()} {path}\n" in pages["rest.md"]
    for key in JobRequest.model_fields:
        assert f"| `{key}` |" in pages["job-file.md"]
    assert "model_post_init" not in pages["python.md"]
    assert "Generator[" not in pages["python.md"]

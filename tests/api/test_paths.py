"""Path traversal: no name in a URL reads, writes or removes anything outside."""

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

from tests import fakes
from tests.api.direct import Direct
from tests.fakes import FakeService
from tuner.api.app import create_app

SECRET = "what nobody is to see"
AUTH = {"Authorization": f"Bearer {fakes.KEY}"}
# Names as they appear in the request line. OUT is the path of a file next to the service's home, and HOME is that home.
EVIL = [
    "..", "../", "../../../OUT", "..%2fOUT", "..%2f..%2f..%2fOUT", "%2e%2e", "%2e%2e%2f%2e%2e%2fOUT", "%252e%252e%252fOUT",
    "%25252e%25252e%25252fOUT", "..%5cOUT", "..%5c..%5c..%5cOUT", "..%255cOUT", "%2e%2e%5cOUT", "....//OUT", "....%2f%2fOUT",
    "..;/OUT", "..%00/OUT", "..%0d%0a/OUT", "..%c0%afOUT", "%c0%ae%c0%ae%c0%afOUT", "..%e0%80%afOUT", "%uff0e%uff0e%u2215OUT",
    "%ef%bc%8e%ef%bc%8e%ef%bc%8fOUT", "%e2%80%a5%e2%81%84OUT", "%2fABS", "%2f%2fABS", "//ABS", "/ABS", "file:%2f%2fABS", "file:///ABS",
    "%5c%5chost%5cshare", "%5c%5c%3f%5cC:%5cwindows", "//host/share/OUT", "C:%5cwindows%5cwin.ini", "~", "~root%2fOUT", "$HOME%2fOUT",
    ".", "%2e", "OUT%00.log", "%00", "api_key", "tuner.db", "..%2fhome%2fapi_key", "..%2f..%2ftuner.db", "trial_00000%2f..%2f..%2fOUT",
    "trial_00000%00%2f..%2fOUT", "proc%2fself%2fenviron", "..%2f..%2f..%2f..%2f..%2fproc%2fself%2fenviron", "*", "%3f", "%23", "a" * 5000,
]  # fmt: skip
ROUTES = [
    ("GET", "/v1/jobs/{}"),
    ("GET", "/v1/jobs/{}/curves"),
    ("POST", "/v1/jobs/{}/cancel"),
    ("GET", "/v1/jobs/JOB/trials/{}"),
    ("GET", "/v1/jobs/JOB/trials/{}/logs"),
    ("GET", "/v1/trainables/{}"),
    ("GET", "/v1/budgets/{}"),
    ("PUT", "/v1/budgets/{}"),
    ("DELETE", "/v1/budgets/{}"),
    ("PUT", "/v1/members/{}"),
    ("DELETE", "/v1/keys/{}"),
    ("GET", "/static/{}"),
    ("GET", "/{}"),
]


class Planted:
    """A service with a finished job and a page, and files next to them that must not be reachable."""

    def __init__(self, folder: Path) -> None:
        self.folder, home = folder, folder / "home"
        (folder / "OUT").write_text(SECRET)
        page = folder / "page"
        page.mkdir()
        (page / "index.html").write_text("the page")
        (page / "link").symlink_to(folder / "OUT")
        (page / "linked").symlink_to(folder)
        self.service: FakeService = fakes.service_in(home)
        client = fakes.client_of(self.service)
        self.job = fakes.submit(client)
        fakes.simulate(self.service, self.job)
        (home / "api_key").write_text(SECRET)
        self.direct = Direct(create_app(self.service, page_files=page))

    def files(self) -> dict[str, int]:
        """Return all files with their sizes, except the database and its journal."""
        paths = (path for path in self.folder.rglob("*") if path.is_file() and "tuner.db" not in path.name)
        return {str(file): file.stat().st_size for file in paths}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planted]:
    made = Planted(tmp_path_factory.mktemp("planted"))
    yield made
    made.direct.close()
    made.service.database.dispose()


@pytest.mark.parametrize(("method", "route"), ROUTES, ids=[" ".join(case) for case in ROUTES])
def test_path_traversal_in_a_url_name_reaches_no_file(planted: Planted, method: str, route: str) -> None:
    before = planted.files()
    for evil in EVIL:
        name = evil.replace("ABS", quote(str(planted.folder / "OUT").lstrip("/"), safe=""))
        target = route.replace("JOB", planted.job).replace("{}", name)
        answer = planted.direct.send(
            method, target, {**AUTH, "Content-Type": "application/json"}.items(), b'{"usd": 0}'
        )
        assert 400 <= answer.status < 500 or answer.status == 307 or is_page(answer.content), (target, answer)
        assert SECRET.encode() not in answer.content, target
        assert b"PATH=" not in answer.content
    assert planted.files() == before


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/jobs"), ("POST", "/v1/jobs")])
def test_path_traversal_in_the_project_name_is_refused(planted: Planted, method: str, path: str) -> None:
    before = planted.files()
    for evil in (unquote(evil_name.replace("ABS", str(planted.folder / "OUT"))) for evil_name in EVIL):
        headers = {**AUTH, "Content-Type": "application/json", "Tuner-Project": evil}
        answer = planted.direct.send(method, path, headers.items(), json.dumps(fakes.body()).encode())
        assert 400 <= answer.status < 500, evil
    assert planted.files() == before


def is_page(content: bytes) -> bool:
    """Return whether the content is the page, which a path that is normalised before the lookup may lead to."""
    return content == b"the page"


@pytest.mark.parametrize("name", ["link", "linked/OUT", "linked/home/api_key"])
def test_symbolic_link_out_of_the_page_folder_is_not_followed(planted: Planted, name: str) -> None:
    answer = planted.direct.send("GET", f"/static/{name}")
    assert answer.status == 404
    assert SECRET.encode() not in answer.content

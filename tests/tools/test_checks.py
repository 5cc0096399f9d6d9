"""Each check of `make lint` reports a planted error with its file and line."""

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
import typer

from tools import mutants as mutants_program
from tools.checks import ROOT, Problem, core, docs, examples, monitoring, mutants
from tools.checks import __main__ as program
from tools.checks.blocks import InvalidBlock, blocks, commands, words_of
from tools.mutants import planted
from tools.planted import Mutant

PAGE = """# A page
<!-- test: page run -->

```console
$ tuner plan job.yaml \\
    --json
# a comment
X=1 tuner spend --csv > file.csv
```

<!-- test: file job.yaml -->
```yaml
name: a
```

- in a list

  ~~~python
  if True:
      print(1)
  ~~~

<!-- test: parse needs a cloud -->
```console
tuner watch JOB
```
"""


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def lines_of(problems: Iterable[Problem], root: Path) -> list[str]:
    return [f"{problem.path.relative_to(root)}:{problem.line}: {problem.message}" for problem in problems]


def test_blocks_are_read_with_their_language_mark_and_text(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    page_blocks = blocks(page)
    assert [(block.line, block.language, block.mark, block.detail) for block in page_blocks] == [
        (4, "console", "run", ""),
        (12, "yaml", "file", "job.yaml"),
        (18, "python", "run", ""),
        (24, "console", "parse", "needs a cloud"),
    ]
    assert page_blocks[2].text == "if True:\n    print(1)\n"
    assert commands(page_blocks[0]) == ["tuner plan job.yaml --json", "X=1 tuner spend --csv > file.csv"]
    assert words_of(commands(page_blocks[0])[1]) == ["tuner", "spend", "--csv"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n```console\nmake\n", ":2: the block has no end"),
        ("```console\nmake\n\n```python\n```\n", ":4: the block that begins on line 1 is still open"),
        ("<!-- test: later -->\n```console\nmake\n```\n", ":1: unknown mark `later`"),
        ("<!-- test: page later -->\n", ":1: unknown mark `later`"),
    ],
)
def test_invalid_blocks_are_refused(text: str, message: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(InvalidBlock, match=message):
        blocks(page)


# A block, its wrong line, and the message.
EXAMPLES = [
    ("<!-- test: elsewhere tests/gone.py -->\n```toml\n```", 2, "the test tests/gone.py does not exist"),
    ("```toml\na = 1\n```", 1, "`toml` does not fit the mark"),
    ("<!-- test: run -->\n```yaml\npriority: 1\n```", 2, "`yaml` does not fit the mark"),
    ("<!-- test: file -->\n```text\n```", 2, "name the file after `file`"),
    ("```console\n# nothing\n```", 1, "the block has no command"),
    ("```console\ntuner bills JOB\n```", 1, "`tuner bills JOB`: the command `tuner bills` does not exist"),
    ("```console\ntuner bill JOB --euro\n```", 1, "`tuner bill JOB --euro`: No such option: --euro"),
    (
        "```console\nsudo -u a TUNER_HOME=/b /opt/tuner/bin/tuner bill JOB --euro\n```",
        1,
        "`sudo -u a TUNER_HOME=/b /opt/tuner/bin/tuner bill JOB --euro`: No such option: --euro",
    ),
    (
        "```console\nsudo tuner-admin bills\n```",
        1,
        "`sudo tuner-admin bills`: the command `tuner bills` does not exist",
    ),
    (
        "```console\nsudo -E --user=a tuner bills\n```",
        1,
        "`sudo -E --user=a tuner bills`: the command `tuner bills` does not exist",
    ),
    ("```console\nsudo\n```", 1, "`sudo` is a command of another program: mark the block"),
    ("```console\nsudo | tee\n```", 1, "`sudo | tee` is a command of another program: mark the block"),
    ("```console\npython\n```", 1, "`python` is a command of another program: mark the block"),
    ("```console\ntuner topup JOB --usd much\n```", 1, "`tuner topup JOB --usd much`: Invalid value"),
    ("```console\nmake all X=1\n```", 1, "`make all X=1`: the Makefile has no target all"),
    (
        "```console\nray start --labels instance-type=m7i.xlarge,usd-per-hour=0.2016\n"
        "ray start --labels ray.io/market-type=spot,instance-type=m7i.xlarge,usd-per-hour=0.0648\n```",
        1,
        "`ray start --labels ray.io/market-type=spot,instance-type=m7i.xlarge,usd-per-hour=0.0648`: "
        "the catalogue has another spot price for m7i.xlarge than 0.0648",
    ),
    (
        "```console\ntuner budgets set a --usd 5 --parent b\ntuner budgets set a --usd 6\n```",
        1,
        "`tuner budgets set a --usd 6` replaces the budget: repeat --parent",
    ),
    ("```console\nray start --heads\n```", 1, "`ray start --heads`: No such option"),
    (
        "```console\npython -m tuner.gone\n```",
        1,
        "`python -m tuner.gone`: the module tuner.gone does not exist",
    ),
    (
        "```console\npython -m pytest tests/gone.py\n```",
        1,
        "`python -m pytest tests/gone.py`: the test tests/gone.py does not exist",
    ),
    ("```console\nhelm install\n```", 1, "`helm install` is a command of another program: mark the block"),
    ("```python\nx = 1\nif x\n```", 3, "not Python: expected ':'"),
    (
        "```python\nimport torch\n\n\ndef train(config):\n    torch.manual_seed(0)\n"
        "    torch.manual_seed(config['seed'])\n    torch.Generator().manual_seed(0)\n```",
        6,
        "`train` sets a constant seed",
    ),
    ("```python\nimport os\n```", 2, "F401 `os` imported but unused"),
    ("```python\n\nprint(missing)\n```", 3, "F821 Undefined name `missing`"),
    ("<!-- test: program shown.py -->\n```python\nx = 1\n```", 2, "the block differs from shown.py"),
    ("```yaml\nbudget: {euro: 1}\n```", 1, "not a job file: /budget/euro: Extra inputs"),
    ("```yaml\npriority: high\n```", 1, "not a job file: /priority: Input should be a valid"),
    ("```json\n{\n  a: 1}\n```", 3, "not JSON: Expecting property name"),
    ("Then type `tuner bills JOB`.", 1, "`tuner bills JOB`: the command `tuner bills` does not exist"),
    ("Use\n`tuner bill --euro`.", 2, "`tuner bill --euro`: the command has no option --euro"),
]


def test_wrong_examples_are_reported(tmp_path: Path) -> None:
    text, expected = "", []
    for block, line, message in EXAMPLES:
        expected.append((text.count("\n") + line, message))
        text += f"{block}\n\n"
    write(tmp_path, {"docs/page.md": text, "Makefile": "test:\n\ttrue\n", "shown.py": "x = 2\n"})
    reported = sorted((problem.line, problem.message) for problem in examples.check(tmp_path))
    assert [line for line, _ in reported] == [line for line, _ in sorted(expected)]
    for (_, message), (_, start) in zip(reported, sorted(expected), strict=True):
        assert message.startswith(start)


def test_valid_examples_pass_and_an_untested_command_is_reported(tmp_path: Path) -> None:
    page = (
        "Type `tuner bill JOB --json`, `tuner pause|resume JOB`.\n\n"
        "<!-- test: run -->\n```console\ntuner best JOB --json | jq .\nmake test\npython -m pytest\n```\n\n"
        "<!-- test: fragment -->\n```python\nprint(missing)\n```\n\n```yaml\nbudget: {usd: 1}\n```\n\n"
        "```console\ntuner jobs\n```\n"
    )
    write(tmp_path, {"README.md": page, "Makefile": "test:\n\ttrue\n"})
    (problem,) = examples.check(tmp_path)
    assert (problem.line, problem.message) == (
        19,
        "all commands on this page must run in a test: mark the block `run` or `start`",
    )


def test_broken_links_are_reported(tmp_path: Path) -> None:
    page = (
        "[1](other.md), [2](other.md#a-code-and-a-link), [3](https://example.com/x#y), [4](other.md)\n"
        "```text\n[5](in-a-block.md)\n```\n"
        "[6](gone.md) and [7](other.md#no-heading)\n# Here\n[8](#here), [9](#there)\n"
    )
    other = "# A `code` and [a link](README.md)\n```text\n# no heading\n```\n"
    write(tmp_path, {"README.md": page, "other.md": other})
    assert lines_of(docs.links(tmp_path), tmp_path) == [
        "README.md:5: the link leads nowhere: gone.md",
        "README.md:5: other.md has no heading for #no-heading",
        "README.md:7: README.md has no heading for #there",
    ]


def test_tables_that_differ_from_the_code_are_reported(tmp_path: Path) -> None:
    listed = "| name |\n| --- |\n| `TUNER_OLD` |\n| `TUNER_HOME` |\n"
    read = 'get("TUNER_HOME")\nget("TUNER_NEW")\n'
    write(tmp_path, {"docs/settings.md": listed, "tuner/settings.py": read})
    assert lines_of(docs.settings(tmp_path), tmp_path) == [
        "docs/settings.md:3: the settings do not read a variable TUNER_OLD",
        "tuner/settings.py:2: TUNER_NEW is not listed in docs/settings.md",
    ]
    listed = "| extra |\n| --- |\n| `s3`, `old` |\n"
    project = "[project.optional-dependencies]\ns3 = []\nnew = []\n"
    write(tmp_path, {"docs/install.md": listed, "pyproject.toml": project})
    assert lines_of(docs.extras(tmp_path), tmp_path) == [
        "docs/install.md:3: the project has no extra old",
        "pyproject.toml:3: the extra new is not listed in docs/install.md",
    ]
    lines = (ROOT / "docs/metrics.md").read_text().splitlines()
    row = next(number for number, line in enumerate(lines, 1) if "tuner_reconciler_failures_total" in line)
    del lines[row - 1]
    (tmp_path / "docs/metrics.md").write_text("\n".join(lines))
    (problem_line,) = lines_of(docs.metrics(tmp_path), tmp_path)
    assert problem_line.startswith(f"docs/metrics.md:{row}: the table differs from the code")


def test_tables_that_lack_a_name_of_the_code_are_reported(tmp_path: Path) -> None:
    changes = {
        "docs/money.md": ("| `plateau` |", "| `plateaus` |"),
        "docs/how-to/bill.md": ("| `export` |", "| exports |"),
        "docs/explanation/algorithm.md": ("`Lost`, ", ""),
    }
    write(tmp_path, {name: (ROOT / name).read_text().replace(*change, 1) for name, change in changes.items()})
    reported = [line.split(":") for line in lines_of(docs.tables(tmp_path), tmp_path)]
    assert [(page, message.strip()) for page, _, message in reported] == [
        ("docs/how-to/bill.md", "the table lacks export"),
        ("docs/money.md", "the code does not define plateaus"),
        ("docs/money.md", "the table lacks plateau"),
        ("docs/explanation/algorithm.md", "the table lacks Lost"),
    ]
    text = (tmp_path / "docs/money.md").read_text().splitlines()
    assert text[int(reported[1][1]) - 1] == "## Limits that end a job"


def test_another_share_of_spot_prices_than_in_the_catalogue_is_reported(tmp_path: Path) -> None:
    prices = "on_demand_usd_h,spot_usd_h\n2,1\n4,1\n4,\n10,3\n"
    page = "# Spot\n\nA spot machine costs 40 % of its on-demand price in the median.\n"
    write(tmp_path, {"docs/how-to/spot.md": page, "tuner/planning/data/prices.csv": prices})
    assert lines_of(docs.spot_share(tmp_path), tmp_path) == [
        "docs/how-to/spot.md:3: in the catalogue, the median is 30 %"
    ]


def test_stale_reference_pages_are_reported(tmp_path: Path) -> None:
    write(tmp_path, {"docs/reference/cli.md": "a\nb\n", "docs/reference/rest.md": "a\nb\n"})
    generated = {"cli.md": "a\nb\n", "rest.md": "a\nc\n", "python.md": "a\n"}
    message = "the page differs from the code: run `make docs` and commit it"
    assert lines_of(docs.reference(tmp_path, generated), tmp_path) == [
        f"docs/reference/rest.md:2: {message}",
        f"docs/reference/python.md:1: {message}",
    ]


def test_commands_without_help_are_reported() -> None:
    program, group = typer.Typer(), typer.Typer()
    program.add_typer(group, name="group")

    @program.command()
    def explained() -> None:
        """Do something."""

    @group.command()
    def unexplained() -> None:
        raise AssertionError

    line = unexplained.__code__.co_firstlineno
    (problem,) = docs.helps(program)
    assert (problem.path, problem.line) == (Path(__file__), line)
    assert problem.message == "the command unexplained has no help text"


def broken_core(root: Path) -> None:
    write(
        root,
        {
            "pyproject.toml": '[tool.coverage.run]\nsource = ["tuner"]\n[tool.coverage.report]\n'
            'include = [\n    "tuner/money.py",\n    "tuner/gone.py",\n    "tools/other.py",\n]\n',
            "tuner/money.py": "a = 1\nif a:  # pragma: no cover\n    pass\nif a:  #pragma no branch\n    pass\n",
            "tools/other.py": "",
            "tests/test_money.py": "def test_a() -> None: ...\nTestB = Machine.TestCase\n",
            "Makefile": "CORE_TESTS := tests tests/test_money.py::TestB \\\n"
            "\t$(addprefix tests/test_,money.py gone.py) \\\n"
            "\ttests/test_money.py::test_b\n"
            "CORE_LEAVES := $(addprefix tests/test_money.py::test_,a c)\n"
            "OTHER := tests/nothing.py\n",
        },
    )


CORE = [
    "tuner/money.py:2: the core must be covered without `pragma: no`",
    "tuner/money.py:4: the core must be covered without `pragma: no`",
    "pyproject.toml:6: no file matches tuner/gone.py",
    "pyproject.toml:7: tools/other.py is in no folder of `source`",
    "Makefile:2: the test tests/test_gone.py does not exist",
    "Makefile:3: the test tests/test_money.py::test_b does not exist",
    "Makefile:4: the test tests/test_money.py::test_c does not exist",
]


def test_missing_parts_of_the_core_are_reported(tmp_path: Path) -> None:
    broken_core(tmp_path)
    assert lines_of(core.check(tmp_path), tmp_path) == CORE


def test_the_program_prints_problems_and_exits_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken_core(tmp_path)
    monkeypatch.setattr(program, "ROOT", tmp_path)
    assert program.main(["core"]) == 1
    assert capsys.readouterr().out.splitlines() == [f"{tmp_path}/{line}" for line in CORE]
    assert program.main(["cores"]) == 2
    assert "unknown check cores: use core, docs" in capsys.readouterr().err


def test_mutants_that_cannot_be_planted_are_reported(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "tools/planted.py": '"twice",\n"same",\n"broken",\n"untested",\n"gone",\n',
            "f.py": "a = 1\nb = 2\nb = 2\n",
            "t.py": "def test_a() -> None: ...\n",
        },
    )
    problems = mutants.check(
        tmp_path,
        [
            Mutant("twice", "f.py", "b = 2", "b = 3", "", ("t.py::test_a",)),
            Mutant("same", "f.py", "a = 1", "a  =  1", "", ("t.py::test_a",)),
            Mutant("broken", "f.py", "a = 1", "a =", "", ("t.py::test_b",)),
            Mutant("untested", "f.py", "a = 1", "a = 2", "", ()),
            Mutant("gone", "g.py", "a = 1", "a = 2", "", ("t.py::test_a",)),
            Mutant("gone", "f.py", "a = 1", "a = 2", "", ("t.py::test_a",)),
        ],
    )
    assert lines_of(problems, tmp_path) == [
        "tools/planted.py:1: twice: 'b = 2' occurs 2 times in f.py, not once",
        "tools/planted.py:2: same: the mutant does not change what f.py does",
        "tools/planted.py:3: broken: f.py does not compile with the mutant: invalid syntax",
        "tools/planted.py:3: broken: the test t.py::test_b does not exist",
        "tools/planted.py:4: untested: the mutant does not name a test",
        "tools/planted.py:5: gone: the file g.py does not exist",
        "tools/planted.py:5: two mutants have the name gone",
    ]


def test_a_mutant_replaces_its_text_only_if_it_occurs_once() -> None:
    mutant = Mutant("m", "f.py", "a = 1", "a = 2", "", ())
    assert planted(mutant, "b = 1") is None
    assert planted(mutant, "a = 1\na = 1") is None
    assert planted(mutant, "a = 1") == "a = 2"


@pytest.fixture
def small_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the program for mutants work on a project with one module, one mutant and a test that fails unless CI is set."""
    profile = "from hypothesis import settings\nsettings.register_profile('core')\n"
    test = (
        "import os\nfrom tuner.f import a\ndef test_a():\n    assert a == 1\n    assert 'CI' in os.environ\n"
    )
    files = {
        "pyproject.toml": "",
        "tuner/f.py": "a = 1\n",
        "tests/conftest.py": profile,
        "tests/test_a.py": test,
    }
    write(tmp_path, {**files, "trainables/t.py": "", "tools/t.py": ""})
    monkeypatch.setattr(mutants_program, "ROOT", tmp_path)
    mutant = Mutant("one", "tuner/f.py", "a = 1", "a = 2", "", ("tests/test_a.py::test_a",))
    monkeypatch.setattr(mutants_program, "MUTANTS", (mutant,))
    monkeypatch.delenv("CI", raising=False)


@pytest.mark.usefixtures("small_project")
def test_mutants_are_killed_by_tests_that_fail_if_their_program_is_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert mutants_program.main(["one"]) == 0
    assert capsys.readouterr().out.splitlines() == ["killed      one", "1 of 1 mutants killed"]


@pytest.mark.usefixtures("small_project")
def test_unknown_mutants_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert mutants_program.main(["one", "two"]) == 2
    assert capsys.readouterr() == ("", "unknown mutant two: use one\n")


@pytest.mark.usefixtures("small_project")
def test_mutants_are_not_planted_if_their_tests_fail_or_take_too_long_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, {"tuner/f.py": "a = 3\n"})
    assert mutants_program.main([]) == 2
    err = capsys.readouterr().err
    assert "assert 3 == 1" in err
    assert err.endswith("\nthe tests fail without any mutant\n")
    monkeypatch.setattr(mutants_program, "LIMIT_S", 0)
    assert mutants_program.main([]) == 2
    assert capsys.readouterr().err.endswith("\nthe tests take longer than 0 s without any mutant\n")


def test_monitoring_that_names_missing_things_is_reported(tmp_path: Path) -> None:
    for name in ("deploy/prometheus/rules", "deploy/grafana"):
        shutil.copytree(ROOT / name, tmp_path / name)
    changes = {
        "docs/runbook.md": ("## TunerDown\n", "## TunerUp\n`tuner_up`\n"),
        "deploy/prometheus/rules/alerts.yml": ("tuner_database_up", "tuner_database_on"),
        "deploy/grafana/dashboards/tuner.json": ("currencyUSD", "currencyEUR"),
    }
    write(tmp_path, {name: (ROOT / name).read_text().replace(*change, 1) for name, change in changes.items()})
    reported = [line.partition(": ") for line in lines_of(monitoring.check(tmp_path), tmp_path)]
    assert [(place.partition(":")[0], message) for place, _, message in reported] == [
        ("deploy/prometheus/rules/alerts.yml", "the metric tuner_database_on does not exist"),
        ("docs/runbook.md", "the section on the alert TunerDown is missing"),
        ("docs/runbook.md", "the rules have no alert TunerUp"),
        ("docs/runbook.md", "the metric tuner_up does not exist"),
        (
            "deploy/grafana/dashboards/tuner.json",
            "the dashboard differs from what deploy/grafana/dashboard.py writes: run it and commit the result",
        ),
        ("deploy/grafana/dashboards/tuner.json", "Spent: Grafana has no such unit"),
    ]
    text = (tmp_path / "docs/runbook.md").read_text().splitlines()
    assert [text[int(place.partition(":")[2]) - 1] for place, _, _ in reported[2:4]] == [
        "## TunerUp",
        "`tuner_up`",
    ]

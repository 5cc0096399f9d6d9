"""The collector of blocks sees what a reader sees."""

from pathlib import Path

import pytest

from tests.pages import blocks, commands, words_of

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


def test_blocks_their_marks_and_the_mark_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    found = blocks(page)
    assert [(one.language, one.mark, one.detail) for one in found] == [
        ("console", "run", ""),
        ("yaml", "file", "job.yaml"),
        ("python", "run", ""),
        ("console", "parse", "needs a cloud"),
    ]
    assert found[2].text == "if True:\n    print(1)\n"
    assert commands(found[0]) == ["tuner plan job.yaml --json", "X=1 tuner spend --csv > file.csv"]
    assert words_of(commands(found[0])[1]) == ["tuner", "spend", "--csv"]


@pytest.mark.parametrize("text", ["```console\nmake\n", "<!-- test: later -->\n```console\nmake\n```\n"])
def test_a_block_without_an_end_and_an_unknown_mark_are_refused(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(AssertionError):
        blocks(page)

"""Every code block of README.md and docs/ is true.

A ```python block is a script: it runs, ends well and says nothing on stderr. A comment on the line above it says what
is special about a block:

    <!-- continues -->       it goes on where the Python block before it ended
    <!-- part of FILE -->    a piece of FILE, word for word, which other tests run or compile
    <!-- not run: WHY -->    it is only read

A ```text block after a paragraph that ends with "prints" is what the Python block before it prints ("prints, in some
order"; "..." in it is anything). Blocks of C++ are parts of a file or not run. Commands of a shell are ```sh.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = {"python", "cpp", "text", "sh", "cmake"}  # of cmake there is one block: test_package.py builds it
END_OF_BLOCK = "\x1e"
DEADLINE_S = 60


@dataclass
class Block:
    line: int  # of its first line of text, from 1
    language: str
    text: str
    marker: str  # of the comment above it, without the brackets
    before: str  # the last line of text between the block before and this one


def blocks_of(page: str) -> list[Block]:
    found: list[Block] = []
    lines = page.split("\n")
    number, text_before = 0, [""]
    while number < len(lines):
        fence = re.match(r"( *)```(.*)$", lines[number])
        if fence is None:
            text_before += [lines[number].strip()] if lines[number].strip() else []
            number += 1
            continue
        end = lines.index(f"{fence[1]}```", number + 1)
        comment = re.fullmatch(r"<!-- (.*) -->", lines[number - 1].strip())
        text = textwrap.dedent("\n".join(lines[number + 1 : end]) + "\n")
        found.append(Block(number + 2, fence[2], text, comment[1] if comment else "", text_before[-1]))
        number, text_before = end + 1, [""]
    return found


MADE_ANEW = re.compile(r"^monarch: rank \d+ of '\w+' has failed \(.*\) and .* made anew: .*\n", re.MULTILINE)


@dataclass
class Script:
    """Blocks that run one after the other, each with the block that tells what it prints."""

    parts: list[tuple[Block, Block | None]]

    def source(self) -> str:
        """Each block stands where it stands on its page, so that a traceback names the page's lines."""
        lines = ["import sys; sys.stdout.reconfigure(line_buffering=True)"]  # as on a terminal
        for block, _ in self.parts:
            lines += [""] * (block.line - 1 - len(lines))
            lines += [*block.text.rstrip("\n").split("\n"), f"print({END_OF_BLOCK!r})"]
        return "\n".join(lines) + "\n"


def scripts_of(blocks: list[Block]) -> list[Script]:
    scripts: list[Script] = []
    for block, following in zip(blocks, [*blocks[1:], None]):
        if block.language != "python" or block.marker.startswith(("part of ", "not run: ")):
            continue
        if block.marker == "continues":
            assert scripts, f"line {block.line} continues nothing"
        else:
            scripts.append(Script([]))
        tells = following is not None and following.language == "text" and "prints" in following.before[-24:]
        scripts[-1].parts.append((block, following if tells else None))
    return scripts


def expect_output(printed: str, told: Block) -> None:
    expected = told.text
    if told.before.endswith("in some order"):
        printed, expected = ("\n".join(sorted(text.splitlines())) + "\n" for text in (printed, expected))
    pattern = re.escape(expected).replace(re.escape("..."), ".*?")
    assert re.fullmatch(pattern, printed, re.DOTALL), f"line {told.line} tells\n{expected}\nbut it printed\n{printed}"


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def all_scripts() -> Iterator:
    for page in PAGES:
        for script in scripts_of(blocks_of(page.read_text())):
            yield pytest.param(script, id=f"{name_of(page)}:{script.parts[0][0].line}")


@pytest.mark.parametrize("script", list(all_scripts()))
def test_a_script_runs_and_prints_what_the_page_says(tmp_path, script):
    for folder in ("build", "examples"):  # it runs as if started at the root of the checkout, and writes elsewhere
        (tmp_path / folder).symlink_to(ROOT / folder)
    (tmp_path / "script.py").write_text(script.source())
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S
    )
    unexpected = MADE_ANEW.sub("", done.stderr)  # what a policy does is said there
    assert (done.returncode, unexpected) == (0, ""), f"stderr:\n{done.stderr}\nstdout:\n{done.stdout}"
    for printed, (_, told) in zip(done.stdout.split(END_OF_BLOCK + "\n"), script.parts):
        if told is not None:
            expect_output(printed, told)


@pytest.mark.parametrize("page", [pytest.param(page, id=name_of(page)) for page in PAGES])
def test_the_other_blocks_are_what_they_say(page):
    text = page.read_text()
    blocks = blocks_of(text)
    told = [told for script in scripts_of(blocks) for _, told in script.parts]
    for previous, block in zip([None, *blocks], blocks):
        if block.language == "text" and previous is not None and previous.language == "python":
            assert block in told, f"line {block.line}: does a script print this? Then say that it prints"
        assert block.language in LANGUAGES, f"line {block.line}: ```{block.language}; there are {LANGUAGES}"
        kind, _, rest = block.marker.partition(" ")
        if block.marker.startswith("part of "):
            file = (ROOT / block.marker.removeprefix("part of ")).read_text()
            assert is_part(block.text, file), f"line {block.line}: not in {rest}:\n{block.text}"
        elif block.language == "cpp":
            assert block.marker.startswith("not run: "), f"line {block.line}: part of which file, or why not run?"
        elif block.marker:
            assert block.marker == "continues" or re.fullmatch("not run: .+", block.marker), f"line {block.line}"
    outside = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert not re.search(r"^ +(from|import) monarch", outside, re.MULTILINE), "Python without a ```python fence"


def is_part(text: str, file: str) -> bool:
    """Does the file have these lines, one after the other, all indented by as much?"""
    wanted = text.rstrip("\n").split("\n")
    lines = file.split("\n")
    return any(
        textwrap.dedent("\n".join(lines[i : i + len(wanted)])).split("\n") == wanted
        for i, line in enumerate(lines)
        if line.strip() == wanted[0].strip()
    )


# ---- The mechanism itself ----

PAGE = """\
# A page

<!-- continues -->
```python
print(1)
```

prints

```text
1
```

Then it prints, in some order

```python
x = 2
print(x, "then", x)
```

<!-- continues -->
```python
print(x); print(3)
```

which prints, in some order

```text
3
...
```
"""


def test_blocks_are_found_joined_and_compared():
    blocks = blocks_of(PAGE.replace("<!-- continues -->\n", "", 1))
    assert [block.language for block in blocks] == ["python", "text", "python", "python", "text"]
    first, second = scripts_of(blocks)
    assert [told.text if told else None for _, told in first.parts + second.parts] == ["1\n", None, "3\n...\n"]
    lines = second.source().split("\n")
    assert lines[16] == 'print(x, "then", x)' == PAGE.split("\n")[17]  # a line was taken out above
    expect_output("2\n3\n", second.parts[1][1])
    with pytest.raises(AssertionError, match="line 28 tells"):
        expect_output("2\n4\n", second.parts[1][1])
    with pytest.raises(AssertionError, match="continues nothing"):
        scripts_of(blocks_of(PAGE))


def test_a_part_of_a_file_is_found_at_any_indentation():
    file = "class A:\n    def f(self):\n        return 1\n"
    assert is_part("def f(self):\n    return 1\n", file)
    assert not is_part("def f(self):\n    return 2\n", file)

"""The site and its pictures: drawn from what they say they are drawn from, complete, and true about the repository."""

import importlib
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from test_docstrings import PUBLIC

from monarch.actor import Extent, ValueMesh

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PICTURES = sorted((DOCS / "pictures").glob("*.svg"))
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
FOLDERS = ("bench", "bindings", "docs", "examples", "python", "src", "tests", "tools")
SOURCES = {".md", ".py", ".pyi", ".h", ".cc", ".c", ".svg", ".txt", ".cmake"}
# A file of documentation that is named in a text: "docs/status.md", "DESIGN.md", and "DESIGN section 4".
NAMED = re.compile(r"(?<![\w/.<-])((?:\.\./|\w[\w-]*/)*\w[\w-]*\.md)\b|\b([A-Z]{4,}) sections? \d")
MADE_IN_TESTS = {"page.md", "file.md"}


@pytest.fixture
def tool(monkeypatch):
    """Imports a script of tools/."""

    def load(name: str) -> ModuleType:
        monkeypatch.syspath_prepend(str(ROOT / "tools"))
        return importlib.import_module(name)

    return load


# ---- Pictures ----


def test_the_chart_is_what_the_kept_run_says(tool):
    chart = tool("chart")
    assert chart.PICTURE.read_text() == chart.render(json.loads(chart.KEPT.read_text())), "run tools/chart.py"


def test_the_chart_shows_who_is_ahead_and_who_does_not_take_part(tool):
    chart = tool("chart")
    cell = {"median": [2.0, 1.9, 2.1]}
    systems = {"ours": cell, "ray": {**cell, "ours_ahead": [50.0]}, "mpi4py": {**cell, "ours_ahead": [0.8]}}
    machine = {"cpu": "A", "cores": 2, "python": "3.11"}
    row = {"row": "X1", "title": "a row", "unit": "ms", "systems": systems}
    drawn = chart.render({"table": [row], "rounds": 3, "machine": machine, "source": {"commit": "0123456789"}})
    texts = ["".join(text.itertext()) for text in ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
    assert {"a row X1", "2 ms", "50×", "0.8×", "not offered"} <= set(texts)
    bars = [bar.attrib for bar in ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}rect") if "x" in bar.attrib]
    middle = chart.place(1)
    assert [float(bar["x"]) < middle for bar in bars] == [False, True]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(1.6, "us", "1.6 us"), (0.0505, "ms", "50.5 us"), (1700, "ms", "1.7 s"), (622e3, "/s", "622 k/s")],
)  # fmt: skip
def test_quantities_have_three_digits(tool, value, unit, text):
    assert tool("chart").quantity(value, unit) == text


def test_the_recording_is_drawn_as_it_was_seen_and_still_true(tool):
    record = tool("record")
    events = record.from_cast(record.CAST.read_text())
    assert record.PICTURE.read_text() == record.render(events), "run tools/record.py --draw"
    typed, *seen, ready = "".join(event.text for event in events).split("\r\n")
    assert (typed, ready) == (record.PROMPT + record.COMMAND, record.PROMPT)
    program = record.COMMAND.removeprefix("python ")
    done = subprocess.run([sys.executable, program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert sorted(seen) == sorted(done.stdout.splitlines())


def test_a_recording_is_cut_into_what_appeared_at_once(tool):
    record = tool("record")
    events = [record.Event(0.0, "$ "), record.Event(0.5, "l"), record.Event(1.0, "\r\nfile\r\n$ ")]
    assert [piece[1:] for piece in record.pieces_of(events)] == [
        (0, 0, "$ "), (0, 2, "l"), (1, 0, "file"), (2, 0, "$ "),
    ]  # fmt: skip
    assert record.from_cast(record.to_cast(events)) == events
    with pytest.raises(ValueError, match="escape"):
        record.pieces_of([record.Event(0.0, "\x1b[1m")])


@pytest.mark.parametrize("file", PICTURES, ids=lambda file: file.name)
def test_a_picture_can_be_read_by_all_and_needs_nothing(file):
    text = file.read_text()
    title, description = ET.fromstring(text)[:2]
    assert title.text and description.text and text.count('aria-labelledby="title desc"') == 1
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg\")|@import|<script|<image|xlink", text)


def test_the_slices_that_are_drawn_light_up_who_they_name():
    svg = "{http://www.w3.org/2000/svg}"
    whole = mesh_of_ranks()
    for panel in ET.parse(DOCS / "pictures" / "mesh.svg").getroot().iter(f"{svg}g"):
        cells = [element for element in panel if element.get("class") in ("lit", "box", "mid")]
        lit = [int(text.text) for cell, text in zip(cells[::2], cells[1::2]) if cell.get("class") == "lit"]
        code = "".join(text.text for text in panel.iter(f"{svg}text") if text.get("class") == "code")
        sizes = next(text.text for text in panel.iter(f"{svg}text") if text.text.startswith("{"))
        named = eval(f"workers{code.removeprefix('workers')}", {"workers": whole})
        assert repr(named.extent) == sizes
        assert lit == ([] if named is whole else named.values())


def mesh_of_ranks() -> ValueMesh:
    extent = Extent(["replicas", "gpus"], [2, 4])
    return ValueMesh(extent.region.as_shape(), range(8))


def test_pages_show_the_pictures_that_there_are():
    shown = {(page.parent / name).resolve() for page in PAGES for name in pictures_of(page.read_text())}
    assert shown == {file.resolve() for file in PICTURES}


def pictures_of(text: str) -> Iterator[str]:
    yield from re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    yield from re.findall(r'<img src="([^"]+)"[^>]*alt="[^"]+"', text)


# ---- Pages ----


def linked(page: Path) -> Iterator[Path]:
    for target in re.findall(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)", page.read_text()):
        yield (page.parent / target).resolve()


def test_what_the_home_page_promises_is_there():
    promised = set(linked(DOCS / "index.md"))
    assert len(promised) >= 7 and all(page.exists() for page in promised)
    # "a page for each, in groups"
    concepts = {page for page in (DOCS / "concepts").glob("*.md") if page.name != "index.md"}
    assert set(linked(DOCS / "concepts" / "index.md")) >= concepts


def test_every_page_is_in_the_menu():
    menu = set(re.findall(r"- (?:[\w ]+: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert menu == {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}


def test_the_reference_has_every_public_name():
    described = set()
    for directive in re.findall(
        r"^::: (\S+)", "".join(page.read_text() for page in DOCS.rglob("reference/*.md")), re.M
    ):
        value = resolve(directive)
        names = getattr(value, "__all__", ()) if isinstance(value, ModuleType) else ()
        described |= {id(value), *(id(getattr(value, name)) for name in names)}
    public = {f"{module}.{name}" for module in PUBLIC for name in importlib.import_module(module).__all__}
    assert sorted(name for name in public if id(resolve(name)) not in described) == []


def resolve(path: str) -> object:
    """The module, class or function of that path."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        owner, _, name = path.rpartition(".")
        return getattr(resolve(owner), name)


def files_with_texts() -> Iterator[Path]:
    yield from (ROOT / "README.md", ROOT / "CONTRIBUTING.md")
    for folder in FOLDERS:
        for file in (ROOT / folder).rglob("*"):
            hidden = any(part.startswith(".") for part in file.relative_to(ROOT).parts)
            if file.suffix in SOURCES and file != Path(__file__) and not hidden:
                yield file


def documents_named_in(text: str) -> Iterator[str]:
    for file, section in NAMED.findall(text):
        yield file or f"{section}.md"


def test_no_text_names_a_document_that_is_not_there():
    missing = []
    for file in files_with_texts():
        for name in documents_named_in(file.read_text()):
            places = (ROOT, DOCS, file.parent, DOCS / "concepts")
            if name not in MADE_IN_TESTS and not any((place / name).exists() for place in places):
                missing.append(f"{file.relative_to(ROOT)}: {name}")
    assert not missing, "\n".join(missing)


def test_documents_are_found_by_their_names():
    text = 'see docs/status.md, (PLAN.md), "PLAN sections 3 and 4", [x](../moving.md#a), SEND section'
    assert list(documents_named_in(text)) == ["docs/status.md", "PLAN.md", "PLAN.md", "../moving.md"]

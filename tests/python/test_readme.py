"""What README.md lists as not there yet is what the code says is not there yet."""

import re
from pathlib import Path

import pytest

import monarch
import monarch.actor
import monarch.job
import monarch.tools.commands
from monarch.actor import Actor, as_endpoint, this_host, this_proc

README = Path(__file__).parents[2] / "README.md"


def listed_by_name() -> dict[str, set[str]]:
    """Where a missing name belongs -> names, from the list at the end of its section."""
    section = README.read_text().split("## What is not there yet")[1].split("\n## ")[0]
    items = re.findall(r"^- `([\w.]+)`: ((?:.+)(?:\n  .+)*)", section, re.MULTILINE)
    return {owner: set(re.findall(r"`(\w+)`", names)) for owner, names in items}


def test_the_missing_names_are_the_listed_ones():
    assert listed_by_name() == {
        "monarch": monarch._NOT_YET,
        "monarch.actor": monarch.actor._NOT_YET,
        "monarch.tools.commands": monarch.tools.commands._NOT_YET,
    }
    assert not monarch.actor.ProcMesh._NOT_YET


def test_a_missing_name_says_so():
    host = this_host()
    owners = {"monarch": monarch, "monarch.actor": monarch.actor, "monarch.job": monarch.job}
    owners |= {"monarch.tools.commands": monarch.tools.commands}
    owners |= {"HostMesh": host, "ProcMesh": this_proc()}
    for owner, names in listed_by_name().items():
        for name in names:
            with pytest.raises(NotImplementedError, match=f"{name} is not there yet"):
                getattr(owners[owner], name)
    plain = this_proc().spawn("plain", Plain).method
    assert "- endpoints: `rref`" in README.read_text()
    with pytest.raises(NotImplementedError, match="rref is not there yet"):
        as_endpoint(plain).rref()


class Plain(Actor):
    def method(self):
        pass


def missing_modules() -> list[str]:
    """By name, from the same list."""
    item = README.read_text().split("\n- modules, which raise")[1].split("\n- ")[0]
    return re.findall(r"`monarch\.([\w.]+)`", item)


def test_the_missing_modules_are_the_listed_ones():
    folder = Path(monarch.__file__).parent
    stand_ins = [
        ".".join(file.relative_to(folder).with_suffix("").parts)
        for file in folder.rglob("*.py")
        if "\nraise module_not_yet" in file.read_text()
    ]
    assert missing_modules() == sorted(stand_ins)


def test_programs_can_ask_for_what_is_missing():
    assert not hasattr(monarch, "Tensor") and getattr(monarch.actor, "span", None) is None
    with pytest.raises(ImportError, match="cannot import name 'span'"):
        exec("from monarch.actor import span")
    for module in missing_modules():
        with pytest.raises(ModuleNotFoundError, match=f"monarch.{module} is not there yet") as info:
            exec(f"import monarch.{module}")
        assert isinstance(info.value, NotImplementedError)

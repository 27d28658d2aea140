"""What workers print in a notebook, as its user sees it."""

import pytest

LIMIT = 60
PREPARE = """
import asyncio, fcntl, struct, sys, termios
from monarch.actor import Actor, endpoint, this_host

class Speaker(Actor):
    @endpoint
    def say(self, what):
        print(what, flush=True)
        print("oh", what, file=sys.stderr)

async def taken():
    # The kernel has a thread for what comes by descriptors 1 and 2.
    while any(struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))[0] for fd in (1, 2)):
        await asyncio.sleep(0)

speakers = this_host().spawn_procs({"gpus": 2}).spawn("speakers", Speaker)
"""
SAY = "print('before'); await speakers.say.call('{0}'); print('after'); await taken()"


def test_the_lines_of_a_cells_workers_are_in_its_output_once_each(monkeypatch):
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # with it, ipykernel leaves descriptors 1 and 2 alone
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    cells = [PREPARE, SAY.format("one"), "1 + 1", SAY.format("two")]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=LIMIT, kernel_name="python3").execute()

    def said(cell, name):
        outputs = [output for output in notebook.cells[cell].outputs if output.get("name") == name]
        return "".join(output["text"] for output in outputs).splitlines()

    for cell, what in (1, "one"), (3, "two"):
        assert sorted(said(cell, "stdout")) == [f"[0] {what}", f"[1] {what}", "after", "before"]
        assert sorted(said(cell, "stderr")) == [f"[0] oh {what}", f"[1] oh {what}"]
    assert said(0, "stdout") == said(2, "stdout") == said(2, "stderr") == []

"""Children that user code forks, in actors and in the script: what they may do, and that their parents never notice."""

import sys
from pathlib import Path

import pytest
from script_run import PROGRAMS, WAYS, Run, program

ways = pytest.mark.parametrize("way", WAYS)

WORKER = program("forks/worker.py")

ENDS = {"return": 0, "raise": 1, "exit 3": 3, "exit text": 1}
SHOWN = {"return": "", "raise": "ValueError: of the child", "exit 3": "", "exit text": "so long"}

SYNC = """
class Forker(Actor):
    @endpoint
    def fork(self, how):
        pid = fork(how)
        return status_of(pid) if isinstance(pid, int) else pid
    @endpoint
    def add(self, a, b):
        return a + b
"""
ASYNC = SYNC.replace("def fork(self", "async def fork(self").replace("def add", "async def add")
MIXED = SYNC.replace("def add", "async def add")
CONCURRENT = ASYNC.replace("@endpoint\n    async def fork", "@concurrent_endpoint\n    async def fork")
KINDS = {"sync": SYNC, "async": ASYNC, "mixed": MIXED, "concurrent": CONCURRENT}

CALLS = """
for _ in range(3):
    for how, status in {ends}.items():
        forked = [forker.fork.call(how) for _ in range(2)]
        sums = [forker.add.call(i, i) for i in range(20)]
        for found in forked:
            assert list(found.get(timeout=20).values()) == [status] * len(forker), (how, found.get())
        for i, found in enumerate(sums):
            assert list(found.get(timeout=20).values()) == [2 * i] * len(forker)
""".replace("{ends}", repr(ENDS))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spawn", ["", ".options(per_proc={'actors': 3})"], ids=["actors", "swarm"])
def test_a_child_that_comes_back_from_an_endpoint_ends_and_its_parent_answers(kind, spawn):
    run = Run(
        WORKER + KINDS[kind] + f"""
procs = this_host().spawn_procs(per_host={{"gpus": 2}})
forker = procs{spawn}.spawn("forker", Forker)
""" + CALLS
    ).done(limit=60)  # fmt: skip
    assert run.status == 0, run.err
    for text in filter(None, SHOWN.values()):
        assert text in run.err
    assert "monarch/_" not in run.err


@ways
def test_a_child_that_comes_back_takes_no_message_of_its_parent(way):
    Run(WORKER + SYNC + """
forker = this_host().spawn_procs().spawn("forker", Forker)
waiting = [forker.fork.call_one("return") if i % 50 == 0 else forker.add.call_one(i, 1) for i in range(1000)]
for i, found in enumerate(waiting):
    assert found.get(timeout=20) == (0 if i % 50 == 0 else i + 1)
""", way=way).ok()  # fmt: skip


def test_a_child_that_comes_back_under_a_deadline_ends_too():
    Run(WORKER + SYNC + ASYNC.replace("Forker", "AsyncForker") + """
procs = this_host().spawn_procs()
for cls in (Forker, AsyncForker):
    forker = procs.spawn("forker", cls)
    for how in ("return", "exit 3"):
        with deadline(20):
            assert forker.fork.call_one(how).get() == (0 if how == "return" else 3)
""").ok()  # fmt: skip


def test_a_child_ends_after_constructors_and_hooks_as_after_endpoints():
    run = Run(PROGRAMS / "forks/constructors_and_hooks.py").ok()
    assert run.out.count("cleaned up after 3") == 2


def test_a_child_that_awaits_in_its_parents_event_loop_ends_with_a_reason():
    run = Run(PROGRAMS / "forks/awaits.py").done()
    assert run.status == 0, run.err
    assert "went on" not in run.out
    assert "a process made by os.fork() in an async actor cannot await there" in run.err


ARRAYS = program("forks/arrays.py")


@pytest.mark.parametrize("size", [1 << 20, 16 << 20])
def test_a_child_that_drops_what_was_received_leaves_it_to_its_parent(size):
    Run(ARRAYS + f"check({size}, Keeper)").ok()


def test_a_child_of_the_script_that_drops_an_answer_leaves_it_to_the_script():
    Run(ARRAYS + """
class Source(Actor):
    @endpoint
    def full(self, value):
        return np.full(1 << 20, value, np.uint8)
source = this_host().spawn_procs().spawn("source", Source)
kept = source.full.call_one(1).get()
pid = os.fork()
if pid == 0:
    del kept
    gc.collect()
    sys.exit(0)
assert status_of(pid) == 0
for value in range(2, 40):
    assert (source.full.call_one(value).get(timeout=20) == value).all()
assert (kept == 1).all()
""").ok()  # fmt: skip


SIZES = (10_000, 1 << 14, 1 << 16, 1 << 20, 20 << 20)
KEPT = program("forks/kept.py")


@pytest.mark.parametrize("way", ["fork", "unix"])
def test_a_child_keeps_what_its_parent_has_dropped(way):
    Run(KEPT + f"""
for size in {SIZES}:
    keeper = this_host().spawn_procs().spawn("keeper", Keeper)
    keeper.fork.call_one(np.ones(size, np.uint8), 1).get()
    for value in range(2, 12):
        assert (keeper.take.call_one(np.full(size, value, np.uint8)).get(timeout=20) == value).all()
    assert keeper.wrong.call_one().get(timeout=20) == 0, size
""", way=way).ok()  # fmt: skip


def test_a_child_of_the_script_keeps_answers_that_the_script_has_dropped():
    Run(KEPT + f"""
keeper = this_host().spawn_procs().spawn("keeper", Keeper)
for size in {SIZES}:
    child = Child(keeper.take.call_one(np.ones(size, np.uint8)).get(timeout=20), 1)
    for value in range(2, 12):
        assert (keeper.take.call_one(np.full(size, value, np.uint8)).get(timeout=20) == value).all()
    assert child.wrong() == 0, size
""").ok()  # fmt: skip


def test_what_a_child_writes_its_parent_does_not_see():
    Run(KEPT + f"""
keeper = this_host().spawn_procs().spawn("keeper", Keeper)
for size in {SIZES}:
    assert keeper.write_in_child.call_one(np.ones(size, np.uint8)).get(timeout=20) == 0, size
    answer = keeper.take.call_one(np.ones(size, np.uint8)).get(timeout=20)
    if (pid := os.fork()) == 0:
        answer *= 7
        os._exit(int((answer != 7).any()))
    assert status_of(pid) == 0 and (answer == 1).all(), size
""").ok()  # fmt: skip


def test_what_children_held_is_lent_again_after_their_end():
    Run(KEPT + """
keeper = this_host().spawn_procs().spawn("keeper", Keeper)
size = 8 << 20
def use(rounds):
    for value in range(rounds):
        keeper.fork.call_one(np.full(size, value % 250, np.uint8), value % 250).get(timeout=20)
        keeper.take.call_one(np.full(size, 251, np.uint8)).get(timeout=20)
        assert keeper.wrong.call_one().get(timeout=20) == 0, value
    return held()
first = use(10)
assert 0 < use(60) <= first + 4 * size, (first, held())
""").ok()  # fmt: skip


def test_a_storm_of_forks_finds_its_data_and_leaves_nothing():
    Run(PROGRAMS / "forks/storm.py").ok()


def test_a_loader_whose_children_alone_have_the_data_reads_the_right_rows():
    Run(PROGRAMS / "forks/loader.py").ok()


def test_a_child_that_drops_ports_futures_and_handles_tells_nobody():
    Run(PROGRAMS / "forks/drops.py").ok()


@ways
def test_children_of_the_script_end_as_they_like_and_its_workers_live_on(way):
    run = Run(WORKER + SYNC + """
import atexit
forker = this_host().spawn_procs(per_host={"gpus": 2}).spawn("forker", Forker)
assert list(forker.add.call(1, 2).get().values()) == [3, 3]
atexit.register(lambda: print("at exit"))
for how, status in {"return": 0, "raise": 1, "exit 3": 3}.items():
    pid = os.fork()
    if pid == 0:
        if how != "return":
            end(how)
        break
    assert status_of(pid) == status
    assert list(forker.add.call(1, 2).get(timeout=20).values()) == [3, 3]
""", way=way).done()  # fmt: skip
    assert run.status == 0, run.err
    assert run.err.count("ValueError: of the child") == 1
    assert run.out.count("at exit") == 4


def test_a_fork_of_a_c_library_counts_as_any_other():
    Run(ARRAYS + """
import ctypes
class Native(Keeper):
    def fork(self):
        return ctypes.PyDLL(None).fork()
    @endpoint
    def come_back(self):
        pid = self.fork()
        return status_of(pid) if pid else "the child"
keeper = check(1 << 20, Native)
assert keeper.come_back.call_one().get(timeout=20) == 0
""").ok()  # fmt: skip


POOLS = program("forks/pools.py")


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_multiprocessing_works_in_actors_and_in_the_script(method):
    run = Run(f"""
import numpy as np
{POOLS}
if __name__ == "__main__":
    loader = this_host().spawn_procs(per_host={{"gpus": 2}}).spawn("loader", Loader)
    for call in (loader.use, loader.use_async):
        for _ in range(2):
            found = call.call({method!r}, np.ones(1 << 20, np.uint8)).get(timeout=60)
            assert list(found.values()) == [1 << 20] * 2
    use_all({method!r})
    found = loader.use.call({method!r}, np.ones(1 << 20, np.uint8)).get(timeout=60)
    assert list(found.values()) == [1 << 20] * 2
""").done(limit=120)  # fmt: skip
    assert run.status == 0, run.err


def test_a_process_pool_of_concurrent_futures_works_in_an_actor():
    Run("""
from concurrent.futures import ProcessPoolExecutor
class Loader(Actor):
    @endpoint
    async def use(self):
        with ProcessPoolExecutor(2) as pool:
            loop = asyncio.get_running_loop()
            return await asyncio.gather(*(loop.run_in_executor(pool, abs, -i) for i in range(20)))
assert this_host().spawn_procs().spawn("loader", Loader).use.call_one().get(timeout=30) == list(range(20))
""").ok()  # fmt: skip


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="not run: its thread states are no danger to forks")
def test_no_child_is_forked_while_a_thread_state_is_being_made():
    """It would wait for ever for a lock of CPython's, whose owner it has not."""
    library = Path(__file__).parents[2] / "build/release/tests/native/libslow_thread_states.so"
    if not library.exists():
        pytest.skip("not run: built without -DMONARCH_TESTS=ON")
    run = Run(
        WORKER + SYNC + """
procs = this_host().spawn_procs()
forker = procs.spawn("forker", Forker)
forker.add.call_one(1, 1).get()
late = [procs.spawn(f"late{i}", Forker) for i in range(20)]
for _ in range(20):
    assert forker.fork.call_one("return").get() == 0
for each in late:
    assert each.add.call_one(1, 2).get() == 3
""",
        env={"LD_PRELOAD": str(library)},
    ).done(limit=60)  # fmt: skip
    assert run.status == 0, run.err


def test_a_forked_child_asks_nothing_of_ucx():
    run = Run("""
from monarch import _core
assert this_host().spawn_procs().initialized.get()
pid = os.fork()
if pid == 0:
    os._exit(0 if "child of fork" in _core.why_no_ucx() else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
""").done(limit=30)
    assert run.status == 0, run.err

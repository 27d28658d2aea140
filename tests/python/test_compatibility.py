"""Old spellings and private paths that published programs use."""

import asyncio
import importlib
import subprocess
import sys
import warnings

import pytest
from script_run import Run, program

import monarch.actor
from monarch.actor import Actor, ActorMesh, endpoint, this_host

LIMIT = 30

A = "monarch._src.actor."
R = "monarch._rust_bindings.monarch_hyperactor."
PATHS = {
    A + "actor_mesh": "Actor ActorMesh Channel Port PortReceiver RankedPortReceiver context current_rank current_size",
    A + "host_mesh": "this_host this_proc HostMesh",
    A + "proc_mesh": "ProcMesh get_or_spawn_controller register_proc_mesh_spawn_callback "
    "unregister_proc_mesh_spawn_callback get_active_proc_meshes",
    A + "endpoint": "endpoint",
    A + "future": "Future",
    A + "bootstrap": "attach_to_workers run_worker_loop_forever",
    A + "pickle": "flatten unflatten torch_dump torch_loads",
    A + "mock": "patch_actor patch_tensor_engine",
    A + "supervision": "unhandled_fault_hook UnhandledFaultHookException",
    "monarch._src.job.job": "BatchJob JobState JobTrait LocalJob job_load job_loads",
    "monarch._src.job.process": "ProcessJob",
    "monarch._src.job.slurm": "SlurmJob",
    R + "supervision": "SupervisionError MeshFailure",
    R + "shape": "Extent Point Region Shape Slice",
    R + "channel": "BindSpec ChannelAddr ChannelTransport",
    R + "host_mesh": "BootstrapCommand",
    R + "handle": "Handle WouldBlockRuntime",
    R + "mailbox": "Mailbox PortReceiver",
    R + "proc": "ActorAddr ProcId Uid",
}
# Of these, what has no public name and belongs to a later version.
NOT_YET = {
    *("ActorAddr", "ChannelAddr", "Handle", "patch_tensor_engine"),
    *("flatten", "unflatten", "torch_dump", "torch_loads"),
}


@pytest.mark.feature(120)
@pytest.mark.parametrize(("module", "name"), [(m, n) for m, names in PATHS.items() for n in names.split()])
def test_private_paths_lead_to_the_same_objects(module, name, monkeypatch):
    monkeypatch.undo()  # conftest.py has a fault hook of its own
    found = importlib.import_module(module)
    try:
        there = getattr(monarch.actor, name)
    except NotImplementedError:  # a later version's
        with pytest.raises(NotImplementedError, match=f"{name} is not there yet"):
            getattr(found, name)
        return
    except AttributeError:  # no public name
        there = None
    if there is None:
        if name in NOT_YET:
            with pytest.raises(NotImplementedError, match=f"{name} is not there yet"):
                getattr(found, name)
            return
        there = getattr(found, name)
        assert there.__module__.partition(".")[0] == "monarch"
    assert getattr(found, name) is there
    with pytest.raises(AttributeError):
        found.no_such_name  # noqa: B018


@pytest.mark.feature(120)
def test_a_name_that_arrives_in_the_public_module_is_there_at_the_private_path(monkeypatch):
    arrived = object()
    monkeypatch.setattr(monarch.actor, "patch_tensor_engine", arrived, raising=False)
    from monarch._src.actor.mock import patch_tensor_engine

    assert patch_tensor_engine is arrived


@pytest.mark.feature(120)
def test_concurrent_endpoint_has_a_module_of_its_own():
    from monarch.actor.concurrent import concurrent_endpoint

    assert concurrent_endpoint is monarch.actor.concurrent_endpoint


@pytest.mark.feature(120, "old modules")
@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("monarch.proc_mesh", "proc_mesh ProcMesh local_proc_mesh"),
        ("monarch.actor_mesh", "Actor ActorMesh endpoint current_rank current_size ActorError"),
        ("monarch.service", "Actor endpoint"),
    ],
)
def test_old_modules_warn_and_lead_to_the_new(module, names):
    sys.modules.pop(module, None)
    with pytest.warns(DeprecationWarning) as caught:
        found = importlib.import_module(module)
    assert str(caught[0].message) == f"{module} is deprecated, please import from monarch.actor instead."
    for name in names.split():
        assert getattr(found, name) is getattr(monarch.actor, name)
    if module == "monarch.service":
        assert found.ServiceCallFailedException is monarch.actor.ActorError
        assert found.Service is found.ActorMeshRef is ActorMesh


@pytest.mark.feature(120, "a DeprecationWarning")
def test_the_warning_names_the_line_that_imports(tmp_path):
    script = tmp_path / "old.py"
    script.write_text("import os\nfrom monarch.proc_mesh import proc_mesh\nimport monarch.bootstrap_main\n")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert f"{script}:2: DeprecationWarning: monarch.proc_mesh is deprecated" in done.stderr
    assert f"{script}:3: DeprecationWarning: monarch.bootstrap_main is deprecated" in done.stderr


@pytest.mark.feature(120)
def test_new_programs_are_not_warned_and_load_nothing_old():
    code = (
        "import sys; from monarch.actor import this_host; this_host().spawn_procs().initialized.get(); "
        "print([name for name in sys.modules if name in ('monarch._old_spellings', 'monarch._src')])"
    )
    done = subprocess.run([sys.executable, "-Werror", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.feature(120, "the oldest program")
def test_the_oldest_program_runs():
    run = Run(program("compatibility/the_oldest_program_runs.py")).done()
    assert run.status == 0
    assert sorted(run.out.splitlines()) == [f"[{n}] Identity: {n}, msg='hey there, from script!!'" for n in range(4)]
    assert run.err.count("DeprecationWarning") == 3, run.err


@pytest.mark.feature(120, "old ways to make a mesh")
def test_old_ways_to_make_a_mesh():
    Run(program("compatibility/old_ways_to_make_a_mesh.py")).ok()


@pytest.mark.feature(120, "meshes that are awaited", "a DeprecationWarning")
def test_old_ways_to_make_a_mesh_warn_their_caller():
    run = Run(program("compatibility/old_ways_to_make_a_mesh_warn_their_caller.py")).ok()
    assert run.out == "1 DeprecationWarning True\n" * 5


class Numbers(Actor):
    @endpoint
    def number(self):
        return 7

    @endpoint
    async def get(self):
        return "an endpoint"


@pytest.mark.feature(120, "streams of values")
def test_stream_may_be_iterated_as_it_once_was(procs):
    numbers = procs.spawn("numbers", Numbers)

    async def collect():
        with pytest.warns(DeprecationWarning, match="stream\\(\\) gives futures"):
            return [value async for value in numbers.number.stream()]

    assert asyncio.run(collect()) == [7, 7]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        futures = numbers.number.stream()
        assert [future.get(timeout=LIMIT) for future in futures] == [7, 7] and iter(futures) is futures


@pytest.mark.feature(120)
def test_an_endpoint_named_get_wins(procs):
    assert procs.slice(gpus=0).spawn("numbers", Numbers).get.call_one().get(timeout=LIMIT) == "an endpoint"


# ---- What consumers reach for below the public API ----


def register(mode):
    def mark(function):
        function.mode = mode
        return function

    return mark


class Base:
    def __init__(self, base=0):
        self.base = base


class Stacked(Base, Actor):
    def __init__(self, base, id_func=None):
        super().__init__(base)
        self.id_func = id_func

    @endpoint
    @register("all to one")
    def value(self):
        return self.base, self.id_func and self.id_func()

    def undecorated(self):
        return 1


def answer():
    return 42


@pytest.mark.feature(1)
def test_endpoints_are_found_on_the_class_with_what_is_under_them(procs):
    from monarch._src.actor.endpoint import EndpointProperty

    found = [name for name in dir(Stacked) if isinstance(getattr(Stacked, name), EndpointProperty)]
    assert found == ["value"]
    assert Stacked.value._method.mode == "all to one" and Stacked.value._method.__name__ == "value"
    actors = procs.spawn("stacked", Stacked, 5)
    assert isinstance(actors, ActorMesh) and actors._class is Stacked and actors.slice(gpus=0)._class is Stacked


@pytest.mark.feature(120)
def test_id_func_is_an_argument_for_those_who_take_it(procs):
    actor = procs.slice(gpus=0).spawn("stacked", Stacked, 5, id_func=answer)
    assert actor.value.call_one().get(timeout=LIMIT) == (5, 42)
    with pytest.warns(DeprecationWarning, match="id_func"):
        other = procs.slice(gpus=0).spawn("numbers", Numbers, id_func=answer)
    assert other.number.call_one().get(timeout=LIMIT) == 7
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
        procs.spawn("numbers", Numbers, other=1)


@pytest.mark.feature(120)
def test_futures_take_attributes_and_can_be_started_by_hand(procs):
    future = procs.slice(gpus=0).spawn("numbers", Numbers).number.call_one()
    future.note = "mine"
    assert future.note == "mine"
    handle = future._take_inner().spawn_handle()

    async def awaited():
        return await handle

    assert asyncio.run(awaited()) == handle.get(timeout=LIMIT) == future.get(timeout=LIMIT) == 7


@pytest.mark.feature(120)
def test_the_context_variable_is_readable_where_it_was():
    from monarch._src.actor.actor_mesh import _context

    assert this_host() is not None and _context.get(None) is None  # no message is being handled here

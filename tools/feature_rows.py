"""The rows of docs/parity.md: the features of PyTorch Monarch's public API that a program can rely on, by number.

A row works when a test marked with its number passes and none fails (tools/parity.py). Three things stand here because
no test can say them: ``differs``, why a row is different on purpose; ``missing``, what of a row has no code or no test
yet although some tests prove the rest (such a row is "not yet"); ``needs``, what it takes to decide the row, where an
ordinary machine is not enough.
"""

from typing import NamedTuple


class Row(NamedTuple):
    number: int
    area: str
    name: str
    differs: str = ""
    missing: str = ""
    needs: str = ""


GPU, SCHEDULER = "GPUs", "an outside scheduler"

ROWS = [
    Row(1, "actors", "Spawn a class: one instance per process, usable at once"),
    Row(2, "actors", "Sync actors: a thread, no event loop"),
    Row(3, "actors", "Async actors: one message at a time"),
    Row(
        4, "actors", "Sync and async endpoints in one class",
        differs="they may be mixed, and hooks may be of either kind; there such a class is a `ValueError`",
    ),
    Row(5, "actors", "Concurrent endpoints"),
    Row(6, "actors", "Endpoints that answer through a port"),
    Row(7, "actors", "Methods without decorator, `as_endpoint`"),
    Row(8, "actors", "Arguments are checked at the caller"),
    Row(9, "actors", "Endpoint names that a mesh needs are refused"),
    Row(10, "endpoints", "`call`"),
    Row(11, "endpoints", "`call_one`"),
    Row(12, "endpoints", "`choose`"),
    Row(13, "endpoints", "`stream`"),
    Row(14, "endpoints", "`broadcast`"),
    Row(15, "endpoints", "`send` with port and selection"),
    Row(16, "endpoints", "First in, first out per sender and receiver"),
    Row(17, "actors", "All code of an actor on one thread"),
    Row(18, "actors", "Actors of one process run in parallel"),
    Row(19, "actors", "An actor stops, aborts, kills itself"),
    Row(20, "actors", "`__cleanup__`"),
    Row(21, "actors", "Actors call actors; meshes travel"),
    Row(22, "endpoints", "Futures: get, await, time-outs"),
    Row(23, "endpoints", "Futures: several observers and loops, cancellation"),
    Row(
        24, "endpoints", "Futures: where blocking is allowed",
        differs="it works everywhere; there is no thread of the runtime that runs Python, so none that refuses",
    ),
    Row(25, "endpoints", "A call is sent at the call"),
    Row(26, "value meshes", "Access to the values of a `ValueMesh`"),
    Row(
        27, "value meshes", "Values are decoded when looked at; equal ones share",
        missing="a test through a call; so far on meshes made by hand",
    ),
    Row(28, "ports/channels", "Channels, ports, receivers"),
    Row(29, "ports/channels", "Once ports, ranked receivers"),
    Row(30, "ports/channels", "Exceptions through ports"),
    Row(31, "ports/channels", "A port sends as the actor that holds it"),
    Row(
        32, "ports/channels", "Messages that find nobody",
        differs="the hook is asked also when the destination has stopped or died",
    ),
    Row(33, "ports/channels", "`Accumulator`", differs="`accumulate` starts at the call"),
    Row(34, "ports/channels", "Reducers inside the tree"),
    Row(35, "context", "The client starts at first use"),
    Row(36, "context", "`current_rank`, `current_size`, `current_actor_name`"),
    Row(37, "context", "Who made whom, readable"),
    Row(38, "context", "`shutdown_context`, and the end of a script"),
    Row(39, "context", "`enable_transport`"),
    Row(40, "context", "`attach`: an outside client"),
    Row(41, "context", "Named controllers"),
    Row(42, "meshes", "Extent, Point, Shape, Slice, Region", differs="all of them are hashable"),
    Row(43, "slicing", "Slicing meshes"),
    Row(44, "slicing", "split, flatten, rename, size"),
    Row(45, "slicing", "Selections"),
    Row(46, "hosts/procs", "`this_host`, `this_proc`"),
    Row(47, "hosts/procs", "`spawn_procs` and its dimensions"),
    Row(48, "hosts/procs", "Bootstrap functions"),
    Row(49, "hosts/procs", "Binding to cores and memory"),
    Row(50, "hosts/procs", "Bootstrap commands, other interpreters"),
    Row(51, "hosts/procs", "Nothing waits for a start"),
    Row(
        52, "hosts/procs", "Stopping meshes; context managers",
        differs="a stop starts at the call, looked at or not; `with` works beside `async with`",
    ),
    Row(
        53, "hosts/procs", "Shutting a host down, or only stopping",
        differs="both start at the call",
        missing="worker programs that outlive their client",
    ),
    Row(54, "hosts/procs", "Meshes outlive their Python references"),
    Row(55, "hosts/procs", "Meshes made by actors"),
    Row(56, "hosts/procs", "Spawn callbacks"),
    Row(57, "hosts/procs", "Worker loops, `attach_to_workers`"),
    Row(58, "hosts/procs", "Attaching pushes the configuration"),
    Row(59, "hosts/procs", "Processes started by user code"),
    Row(60, "hosts/procs", "No orphans, no zombies"),
    Row(61, "meshes", "Meshes in messages and pickles"),
    Row(62, "errors", "An endpoint's exception arrives with its traceback"),
    Row(63, "errors", "Exceptions that nobody waits for end the actor"),
    Row(64, "errors", "Deaths of processes"),
    Row(65, "supervision", "`__supervise__` that deals with a failure"),
    Row(66, "supervision", "`__supervise__` that passes it on"),
    Row(67, "supervision", "`unhandled_fault_hook`", differs="the exit status is 1, always; there 130"),
    Row(
        68, "supervision", "The healthy rest of a mesh goes on",
        differs="the process of a failed actor takes new actors; there it refuses",
    ),
    Row(69, "supervision", "The death of an owner", missing="the error for a controller that cannot be reached"),
    Row(70, "supervision", "Constructors that fail"),
    Row(
        71, "errors", "Values that do not pickle",
        missing="the limit of a frame's size",
    ),
    Row(72, "errors", "Calls after a stop"),
    Row(73, "supervision", "Only the owner hears of a failure"),
    Row(
        74, "serialisation", "Code of `__main__` travels by value",
    ),
    Row(75, "serialisation", "torch tensors in messages"),
    Row(76, "serialisation", "Encodings and thresholds"),
    Row(77, "config", "configure, configured, get, clear"),
    Row(78, "config", "Environment variables, propagation"),
    Row(79, "config", "Durations and transports"),
    Row(80, "config", "Parametrising tests"),
    Row(81, "logging", "Log records name their actor"),
    Row(
        82, "logging", "What workers print reaches the script",
        differs="from the start, and lines are not cut; there it has to be switched on",
    ),
    Row(83, "logging", "Equal lines are merged"),
    Row(84, "notebook extras", "Output in notebooks"),
    Row(85, "logging", "Log files, the tail of stderr"),
    Row(86, "debugger", "`breakpoint()` in actors"),
    Row(87, "debugger", "Source of code that is only at the script"),
    Row(88, "jobs", "Jobs: cache, apply, state, kill"),
    Row(89, "jobs", "LocalJob, ProcessJob"),
    Row(90, "jobs", "SlurmJob", needs=SCHEDULER),
    Row(91, "jobs", "KubernetesJob", needs=SCHEDULER),
    Row(92, "jobs", "Jobs over SSH, SkyPilot", needs=SCHEDULER),
    Row(93, "jobs", "Batch mode"),
    Row(94, "spmd", "SPMD programs"),
    Row(95, "spmd", "A job from a torch store"),
    Row(96, "CLI", "The command `monarch`"),
    Row(97, "jobs", "Running commands on a job's hosts, forwarding ports"),
    Row(98, "CLI", "Torchx commands"),
    Row(99, "code sync", "Workspaces are synchronised, modules reloaded"),
    Row(100, "code sync", "Remote mounts"),
    Row(101, "code sync", "Gather mounts"),
    Row(102, "rdma", "RDMABuffer on the CPU, over TCP", differs="any shape and stride; there 1-D and contiguous"),
    Row(103, "rdma", "RDMABuffer on GPUs and NICs", needs=GPU),
    Row(104, "rdma", "RDMAAction: batches"),
    Row(105, "rdma", "Lifetime of registered memory"),
    Row(106, "rdma", "Which NIC", needs=GPU),
    Row(107, "telemetry", "Metrics and spans"),
    Row(108, "telemetry", "OTLP, Perfetto, SQLite"),
    Row(109, "telemetry", "SQL over telemetry"),
    Row(110, "telemetry", "HTTP API of the mesh admin"),
    Row(111, "telemetry", "Terminal user interface"),
    Row(112, "dashboards", "Web dashboard"),
    Row(113, "tensor engine", "activate, remote operations, fetch_shard, inspect"),
    Row(114, "tensor engine", "Collectives", needs=GPU),
    Row(115, "tensor engine", "Streams, borrows, drop"),
    Row(116, "tensor engine", "Remote functions and their errors"),
    Row(117, "tensor engine", "Autograd, random state, opaque objects, pipes"),
    Row(118, "tensor engine", "Between actors and tensors"),
    Row(119, "simulator", "Simulator and mocks", missing="the simulator, `patch_tensor_engine`"),
    Row(
        120, "compatibility", "Programs in old spellings",
    ),
]  # fmt: skip

"""The rows of the suite: what is measured, in which program, and what gate and aim ours is held to."""

from dataclasses import dataclass, field

# Of limits/star.cc, the one whose processes share no memory.
SOCKET_STAR = "limit:socket"


@dataclass(frozen=True)
class Row:
    name: str
    title: str
    unit: str
    better: str = "low"  # whether a low or a high value is the better one
    gate: float | None = None  # in `unit`
    aim: float | None = None
    # Peer -> how many times better than it the gate demands; "limit" is the best limit program of the row.
    ahead_of: dict = field(default_factory=dict)
    peers: bool = True  # whether those of its program are asked for it too
    quick: bool = False
    pooled: bool = False  # judged by the median of all readings: of few, from two modes, those of the rounds jump

    @property
    def judged(self):
        """Whether it has a gate of either kind; the others are reported only."""
        return self.gate is not None or bool(self.ahead_of)

    def times_better(self, ours, other):
        """How many times better `ours` is than `other`; below 1 it is worse. None where a zero makes it meaningless."""
        over, under = (other, ours) if self.better == "low" else (ours, other)
        return over / under if under > 0 and over > 0 else None


@dataclass(frozen=True)
class Program:
    """Rows that share one process tree per system and round."""

    name: str
    rows: tuple
    script: str | None = None  # bench/workloads/<script>
    limit: str = "ring"  # ring: the same script on the ring; star, copy, death, wire: native programs; none
    systems: tuple = ("ours", "torchmonarch", "ray", "mpi4py", "pyzmq")
    procs: int = 1  # worker processes; what a launcher of ranks has to start; 0: the script starts what it needs
    placed: bool = True  # whether placement applies (False: always free)
    rounds_max: dict = field(default_factory=dict)  # system -> fewer rounds, where one takes half a minute or more
    venvs: dict = field(default_factory=dict)  # system -> the peer in setup.py whose venv it needs here, if not its own


PROGRAMS = (
    Program(
        "W1",
        script="w1.py",
        rows=(
            Row(
                "W1s",
                "sync call, def endpoint",
                "us",
                gate=10,
                aim=2,
                ahead_of={"torchmonarch": 50},
                quick=True,
            ),
            Row("W1x", "call of an endpoint that raises", "us", gate=60, aim=27, quick=True),
            Row("W1c", "sync call after 10 ms of silence", "us", quick=True),
            Row("W1i", "CPU of the idle tree, after 1 s", "ms/s", quick=True),
            Row("W1a", "await of an async endpoint", "us", gate=25, aim=10, quick=True),
        ),
    ),
    Program(
        "W2",
        script="w2.py",
        rows=(
            Row("W2w", "64 calls outstanding", "/s", "high", gate=200e3, aim=900e3, quick=True),
            Row("W2w1k", "1,024 calls outstanding", "/s", "high"),
            Row("W2o", "one-way 64 B + barrier", "/s", "high", gate=300e3, aim=1e6, quick=True),
            Row("W2g", "asyncio.gather of 64", "/s", "high", quick=True),
        ),
    ),
    Program(
        "W3",
        script="w3.py",
        procs=2,
        limit="none",
        systems=("ours", "torchmonarch"),
        rows=(
            Row("W3_64", "call on 64 actors in 2 processes", "ms"),
            Row("W3_1k", "call on 1,024 actors in 2 processes", "ms", gate=5, aim=1, quick=True),
        ),
    ),
    Program(
        "W4_2",
        script="w4.py",
        limit="star",
        procs=2,
        placed=False,
        rows=(Row("W4_2", "call on a mesh of 2 processes", "ms"),),
    ),
    Program(
        "W4_8",
        script="w4.py",
        limit="star",
        procs=8,
        placed=False,
        rows=(Row("W4_8", "call on a mesh of 8 processes", "ms", gate=0.2, aim=0.1, quick=True),),
    ),
    Program(
        "W4_32",
        script="w4.py",
        limit="star",
        procs=32,
        placed=False,
        rounds_max={"ray": 3},
        rows=(Row("W4_32", "call on a mesh of 32 processes", "ms", gate=0.9, aim=0.3),),
    ),
    Program(
        "W4_64",
        script="w4.py",
        limit="star",
        systems=("ours", "torchmonarch"),
        procs=64,
        placed=False,
        rounds_max={"torchmonarch": 2},
        rows=(Row("W4_64", "call on a mesh of 64 processes", "ms", ahead_of={SOCKET_STAR: 1 / 2}),),
    ),
    Program(
        "W4_256",
        script="w4.py",
        limit="star",
        systems=("ours",),
        procs=256,
        placed=False,
        rows=(Row("W4_256", "call on a mesh of 256 processes", "ms", ahead_of={SOCKET_STAR: 1 / 1.5}),),
    ),
    Program(
        "W5",
        script="w5.py",
        procs=9,
        limit="none",
        systems=("ours", "torchmonarch", "ray"),
        placed=False,
        rounds_max={"ray": 3},
        rows=(
            Row("W5_8", "8 processes send one-way 64 B to one actor", "/s", "high", gate=150e3, aim=700e3, quick=True),
            Row("W5f_8", "the same: last of them done / first done", "x", quick=True),
        ),
    ),
    Program(
        "W6",
        script="w6.py",
        limit="copy",
        rows=(
            Row("W6_64K", "NumPy argument, 64 KiB, two bytes read", "GB/s", "high"),
            Row("W6s_64K", "the same, all bytes summed", "GB/s", "high"),
            Row(
                "W6_1M",
                "NumPy argument, 1 MiB, two bytes read",
                "GB/s",
                "high",
                gate=6,
                aim=12,
                ahead_of={"limit": 0.6},
                quick=True,
            ),
            Row("W6s_1M", "the same, all bytes summed", "GB/s", "high", quick=True),
            Row(
                "W6_64M",
                "NumPy argument, 64 MiB, two bytes read",
                "GB/s",
                "high",
                gate=8,
                aim=15,
                ahead_of={"limit": 0.6},
            ),
            Row("W6s_64M", "the same, all bytes summed", "GB/s", "high"),
        ),
    ),
    Program(
        "W6f",
        script="w6f.py",
        limit="none",
        systems=("ours",),
        procs=8,
        placed=False,
        rows=(
            Row("W6f_1K", "NumPy argument of 1 KiB, frozen, two bytes read", "us"),
            Row("W6f_1G", "the same, 1 GiB", "us"),
            Row("W6f8_1K", "1 KiB, frozen, to 8 processes", "us"),
            Row("W6f8_1G", "the same, 1 GiB", "us"),
        ),
    ),
    Program(
        "W13",
        script="w13.py",
        limit="none",
        systems=("ours", "torchmonarch", "ray", "mpi4py", "ucx"),
        rows=(
            Row("W13s_64", "read of a buffer, 64 B, mapped", "us", gate=10, aim=2, quick=True),
            Row("W13v_64", "the same, ordinary memory", "us", gate=10, aim=2, quick=True),
            Row("W13w_64", "write, 64 B, ordinary memory", "us"),
            Row("W13s_4K", "read, 4 KiB, mapped", "us"),
            Row("W13v_4K", "read, 4 KiB, ordinary", "us"),
            Row("W13w_4K", "write, 4 KiB, ordinary", "us"),
            Row("W13s_1M", "read, 1 MiB, mapped", "GB/s", "high"),
            Row("W13v_1M", "read, 1 MiB, ordinary", "GB/s", "high", ahead_of={"torchmonarch": 10}),
            Row("W13w_1M", "write, 1 MiB, ordinary", "GB/s", "high", ahead_of={"torchmonarch": 10}),
            Row("W13s_4M", "read, 4 MiB, mapped", "GB/s", "high"),
            Row("W13v_4M", "read, 4 MiB, ordinary", "GB/s", "high"),
            Row("W13w_4M", "write, 4 MiB, ordinary", "GB/s", "high"),
            Row("W13s_64M", "read, 64 MiB, mapped", "GB/s", "high"),
            Row("W13v_64M", "read, 64 MiB, ordinary", "GB/s", "high", ahead_of={"torchmonarch": 1}, quick=True),
            Row("W13w_64M", "write, 64 MiB, ordinary", "GB/s", "high", ahead_of={"torchmonarch": 1}),
            Row("W13xs_4M", "read, 4 MiB, mapped, beside memcpy", "x", "high", gate=0.6, aim=0.9, peers=False),
            Row(
                "W13xs_64M",
                "read, 64 MiB, mapped, beside memcpy",
                "x",
                "high",
                gate=0.6,
                aim=0.9,
                quick=True,
                peers=False,
            ),
            Row("W13xv_4M", "read, 4 MiB, beside process_vm_readv", "x", "high", gate=0.6, aim=0.9, peers=False),
            Row(
                "W13xv_64M",
                "read, 64 MiB, beside process_vm_readv",
                "x",
                "high",
                gate=0.6,
                aim=0.9,
                quick=True,
                peers=False,
            ),
            Row("W13xw_4M", "write, 4 MiB, beside process_vm_readv", "x", "high", gate=0.6, aim=0.9, peers=False),
            Row("W13xw_64M", "write, 64 MiB, beside process_vm_readv", "x", "high", gate=0.6, aim=0.9, peers=False),
            Row("W13c_1M", "registered and read from cold, 1 MiB", "ms", gate=2, quick=True, pooled=True),
        ),
    ),
    Program(
        "W13h",
        script="w13_hosts.py",
        limit="wire",
        systems=("ours",),
        procs=0,
        placed=False,
        rows=(
            Row("W13h_64M", "read, 64 MiB, from another host, without TLS", "GB/s", "high", ahead_of={"limit": 0.7}),
            Row("W13ht_64M", "read, 64 MiB, from another host", "GB/s", "high"),
        ),
    ),
    Program(
        "W7",
        script="w7.py",
        procs=2,
        systems=("ours", "torchmonarch", "ray"),
        rounds_max={"ray": 2},
        rows=(Row("W7", "100 actors spawned one by one, answered", "/s", "high", gate=10e3, aim=20e3, quick=True),),
    ),
    Program(
        "W8",
        script="w8.py",
        placed=False,
        rounds_max={"ray": 3},
        systems=("ours", "torchmonarch", "ray", "pyzmq"),
        rows=(
            Row("W8_1", "spawn 1 process with an actor", "ms", gate=25, aim=8, quick=True),
            Row("W8_8", "spawn 8 processes with an actor each", "ms", gate=120, aim=40, quick=True),
        ),
    ),
    Program(
        "W9",
        script="w9.py",
        procs=0,
        placed=False,
        rows=(
            Row("W9i", "import, over a bare interpreter", "ms", gate=30, aim=20, quick=True),
            Row("W9p", "import done to first answer", "ms", gate=80, aim=30, quick=True),
        ),
    ),
    Program(
        "W10",
        script="w10.py",
        limit="death",
        systems=("ours", "torchmonarch", "ray", "mpi4py"),
        procs=0,
        placed=False,
        rounds_max={"torchmonarch": 2, "ray": 3},
        rows=(
            Row("W10k_30M", "SIGKILL to the error at the caller", "ms", gate=1, aim=0.4, quick=True, pooled=True),
            Row("W10s_30M", "SIGSEGV to the error", "ms", gate=1, aim=0.4, pooled=True),
            Row("W10x_30M", "os._exit(7) to the error", "ms", gate=1, aim=0.4, peers=False, pooled=True),
            Row("W10k_1G", "SIGKILL to the error, 1 GiB", "ms", gate=1, aim=0.4, peers=False, pooled=True),
            Row("W10s_1G", "SIGSEGV, 1 GiB", "ms", gate=1, aim=0.4, peers=False, pooled=True),
            Row("W10x_1G", "os._exit(7), 1 GiB", "ms", gate=1, aim=0.4, peers=False, pooled=True),
            Row("W10f", "SIGKILL, the first death of a fresh script", "ms", peers=False, pooled=True),
            Row("W10b_30M", "SIGKILL, the caller also computes", "ms", gate=10, aim=6, peers=False, pooled=True),
            Row("W10n", "SIGKILL of a worker's worker to the error", "ms", gate=1, aim=0.4, peers=False, pooled=True),
            Row("W10_32", "32 at once, to the last error", "ms", peers=False, pooled=True),
        ),
    ),
    Program(
        "W19",
        script="w19.py",
        limit="none",
        systems=("ours", "ray"),
        procs=0,
        placed=False,
        rounds_max={"ray": 2},
        rows=(
            Row("W19p_8", "1 of 8 killed and back, by policy", "ms", quick=True),
            Row("W19p_32", "1 of 32 killed and back, by policy", "ms", gate=500, aim=50, quick=True),
            Row("W19c_8", "1 of 8, except and respawn()", "ms", peers=False),
            Row("W19c_32", "1 of 32, except and respawn()", "ms", gate=500, aim=50, peers=False),
            Row("W19i", "CPU of 32 idle, supervised, replaceable", "ms/s", gate=5, aim=1, quick=True, peers=False),
        ),
    ),
    Program(
        "W17",
        script="w17.py",
        limit="none",
        systems=("ours",),
        placed=False,
        rounds_max={"ours": 2},
        rows=(
            Row("W17p", "under load: a call to an idle actor, p99", "ms", gate=100, aim=1),
            Row("W17m", "status of a mesh of 64, p99", "ms", gate=100, aim=1),
            Row("W17u", "whether all 64 are up, p99", "ms", gate=100),
            Row("W17d", "stacks of a busy process, p99", "ms", gate=100, aim=10),
            Row("W17a", "stacks of all 69 processes, p99", "ms", gate=100, aim=10),
            Row("W17s", "stop of a busy process, p99", "ms", gate=100, aim=1),
            Row("W17b", "a byte through bare pipes and back, p99", "ms"),
        ),
    ),
    Program(
        "W20",
        script="w20.py",
        limit="wire",
        systems=("ours",),
        procs=0,
        placed=False,
        rows=(
            Row("W20s", "sync call to another host", "us", quick=True),
            Row("W20x", "call between two other hosts", "us"),
            Row("W20c_1", "call on 8 processes of 1 host", "ms"),
            Row("W20c_4", "call on 8 processes of 4 hosts", "ms", quick=True),
            Row("W20t_1M", "NumPy argument, 1 MiB, to another host", "GB/s", "high", ahead_of={"limit": 0.7}),
            Row("W20t_64M", "NumPy argument, 64 MiB, to another host", "GB/s", "high", ahead_of={"limit": 0.7}),
            Row("W20p_1M_1", "1 MiB to 8 processes of 1 host", "GB/s", "high"),
            Row("W20p_1M_4", "1 MiB to 8 processes of 4 hosts", "GB/s", "high"),
            Row("W20p_64M_1", "64 MiB to 8 processes of 1 host", "GB/s", "high"),
            Row("W20p_64M_4", "64 MiB to 8 processes of 4 hosts", "GB/s", "high"),
            Row("W20a_4", "attach, spawn on 4 hosts, answers", "ms"),
            Row("W20d", "64 daemons, until all listen", "ms"),
            Row("W20m", "a daemon that waits, resident", "MB", gate=10),
            Row("W20a_64", "attach, spawn on 64 hosts, answers", "ms"),
            Row("W20c_64", "call on a process of each of 64 hosts", "ms"),
            Row("W20r", "a host with one actor, all processes", "MB"),
        ),
    ),
    Program(
        "W21",
        script="w21.py",
        limit="none",
        systems=("ours", "torchmonarch", "ray"),
        procs=0,
        placed=False,
        rounds_max={"torchmonarch": 3, "ray": 3},
        venvs={"torchmonarch": "torchmonarch-torch"},
        rows=(
            Row("W21p_64M", "torchstore: state dict of 64 MiB, put", "GB/s", "high"),
            Row("W21g_64M", "the same, got", "GB/s", "high"),
            Row("W21i_64M", "the same, got into its tensors", "GB/s", "high"),
            Row("W21mp_64M", "the same by messages, put", "GB/s", "high", peers=False),
            Row("W21mg_64M", "the same by messages, got", "GB/s", "high", peers=False),
            Row("W21mi_64M", "the same by messages, into its tensors", "GB/s", "high", peers=False),
            Row("W21c_64M", "the same, cloned in its process", "GB/s", "high", peers=False),
            Row("W21p_1G", "torchstore: state dict of 1 GiB, put", "GB/s", "high"),
            Row("W21g_1G", "the same, got", "GB/s", "high"),
            Row("W21i_1G", "the same, got into its tensors", "GB/s", "high"),
            Row("W21mp_1G", "the same by messages, put", "GB/s", "high", peers=False),
            Row("W21mg_1G", "the same by messages, got", "GB/s", "high", peers=False),
            Row("W21mi_1G", "the same by messages, into its tensors", "GB/s", "high", peers=False),
            Row("W21c_1G", "the same, cloned in its process", "GB/s", "high", peers=False),
        ),
    ),
    Program(
        "W22",
        script="w22.py",
        limit="none",
        systems=("ours", "torchmonarch"),
        procs=0,
        placed=False,
        rounds_max={"torchmonarch": 3},
        rows=(
            Row("W22r", "second run on a job's hosts: import to answers", "ms", gate=150, aim=60),
            Row("W22x", "`monarch exec true`, whole", "ms", gate=150, aim=80, peers=False),
            Row("W22s", "sync of 10,000 files that are the same", "ms", gate=300, peers=False),
        ),
    ),
    Program(
        "W16",
        script="w16.py",
        placed=False,
        systems=("ours", "torchmonarch"),
        rows=(
            Row("W16r", "8 processes print 100 B lines", "/s", "high", gate=100e3, aim=650e3, quick=True),
            Row("W16q", "a quiet line, print to script's stdout", "ms", gate=5, aim=1, quick=True),
            Row("W16s", "who prints, over a bare pipe's writer", "x", gate=1.2, aim=1.1, quick=True),
        ),
    ),
    Program(
        "W14",
        limit="none",
        systems=("ours", "caf"),
        placed=False,
        rows=(
            Row("W14p", "C++ in process: ping-pong", "ns", ahead_of={"caf": 1}, quick=True),
            Row("W14f", "C++ in process: one-way flood", "/s", "high", ahead_of={"caf": 1}, quick=True),
        ),
    ),
)

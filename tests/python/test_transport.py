"""ChannelTransport, bind specs, and enable_transport in scripts of their own (it is for the life of a process)."""

import copy
import pickle

import pytest
from hostd import ATTACH
from script_run import Run

from monarch._config.transports import BindSpec
from monarch.actor import ChannelTransport, enable_transport
from monarch.config import Encoding, configured, get_global_config

MEMBERS = [
    "TcpWithLocalhost", "TcpWithHostname", "MetaTlsWithHostname", "MetaTlsWithIpV6", "MetaQuicWithHostname",
    "MetaQuicWithIpV6", "Quic", "Tls", "Local", "Unix",
]  # fmt: skip


@pytest.mark.feature(79)
@pytest.mark.parametrize(
    "member",
    [getattr(ChannelTransport, name) for name in MEMBERS] + [Encoding.Bincode, Encoding.Json, Encoding.Multipart],
    ids=str,
)
def test_a_member_has_a_name_and_is_there_once(member):
    kind = type(member)
    assert repr(member) == str(member) == f"{kind.__name__}.{member.name}"
    assert getattr(kind, member.name) is member
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(member, protocol)) is member
    assert copy.copy(member) is copy.deepcopy(member) is member
    assert {member: 1}[member] == 1


@pytest.mark.feature(79)
def test_members_differ():
    assert len({getattr(ChannelTransport, name) for name in MEMBERS}) == 10
    assert ChannelTransport.Unix != ChannelTransport.Local != 8
    assert ChannelTransport.Tcp is ChannelTransport.TcpWithHostname  # an old spelling


@pytest.mark.feature(79)
@pytest.mark.parametrize("kind", [ChannelTransport, Encoding])
def test_there_are_no_other_members(kind):
    with pytest.raises(ValueError, match=f"'Unix' is not a valid {kind.__name__}"):
        kind("Unix")


@pytest.mark.feature(79)
def test_a_bind_spec_of_a_member_has_its_text():
    texts = {name: str(BindSpec(getattr(ChannelTransport, name))) for name in MEMBERS}
    assert texts == {
        "TcpWithLocalhost": "tcp(Localhost)", "TcpWithHostname": "tcp(Hostname)",
        "MetaTlsWithHostname": "metatls(Hostname)", "MetaTlsWithIpV6": "metatls(IpV6)",
        "MetaQuicWithHostname": "metaquic(Hostname)", "MetaQuicWithIpV6": "metaquic(IpV6)",
        "Quic": "quic", "Tls": "tls", "Local": "local", "Unix": "unix",
    }  # fmt: skip


@pytest.mark.feature(79)
def test_bind_specs_compare_by_what_they_say_and_pickle():
    spec = BindSpec("tcp")
    assert spec == BindSpec(spec) == BindSpec(ChannelTransport.TcpWithHostname) == BindSpec("tcp(Hostname)")
    assert hash(spec) == hash(BindSpec("tcp(Hostname)"))
    assert spec != BindSpec("unix") and spec != "tcp(Hostname)" and spec != ChannelTransport.TcpWithHostname
    assert repr(spec) == "BindSpec('tcp(Hostname)')"
    assert pickle.loads(pickle.dumps(spec)) == copy.deepcopy(spec) == spec
    assert BindSpec("tcp://h:80") == BindSpec("tcp:h:80") != spec


# ---- enable_transport ----

BEFORE = """
from monarch.config import get_global_config
def refused(kind, transport):
    try:
        enable_transport(transport)
    except kind as error:
        return str(error)
    raise AssertionError("accepted")
"""


def run(source, **options):
    return Run(BEFORE + source, **options).ok()


@pytest.mark.feature(39, "again: nothing")
def test_the_transport_of_this_host_is_accepted_and_the_same_again_is_nothing_new():
    run("""
for transport in ("ipc", ChannelTransport.Unix, "unix", "ipc"):
    enable_transport(transport)
class A(Actor):
    @endpoint
    def ask(self):
        return str(get_global_config()["default_transport"])
assert this_host().spawn_procs().spawn("a", A).ask.call_one().get() == "unix"
enable_transport("ipc")
""")


@pytest.mark.feature(79, "texts, members and addresses")
def test_enabling_a_transport_sets_the_default_transport():
    run("""
enable_transport("local")
assert str(get_global_config()["default_transport"]) == "local"
""")


@pytest.mark.feature(39, "a conflict raises")
def test_a_different_one_is_refused():
    run("""
enable_transport("ipc")
assert refused(RuntimeError, "tcp") == (
    "Only one transport type may be enabled at one time. Currently enabled transport type is `unix`. "
    "Attempted to enable transport type `tcp(Hostname)`.")
this_host()
assert refused(RuntimeError, "local").startswith("Only one transport type may be enabled at one time. ")
""")


@pytest.mark.feature(39, "a conflict raises")
@pytest.mark.parametrize("first", ["context()", "this_host()", "this_proc()"])
def test_it_is_refused_after_the_first_use(first):
    run(f"""
{first}
for transport in ("ipc", "tcp"):
    text = refused(RuntimeError, transport)
    assert text.startswith("`enable_transport()` must be called before any other calls in the monarch API. "), text
""")


def test_it_is_refused_in_an_actor():
    run("""
class A(Actor):
    @endpoint
    def ask(self):
        return refused(RuntimeError, "ipc")
text = this_host().spawn_procs().spawn("a", A).ask.call_one().get()
assert text.startswith("`enable_transport()` must be called before any other calls in the monarch API. "), text
""")


@pytest.mark.parametrize(
    ("transport", "text"),
    [
        pytest.param("tcp", "tcp(Hostname)", marks=pytest.mark.feature(39, "tcp, ipc, tls")),
        pytest.param("tls", "tls", marks=pytest.mark.feature(39, "tcp, ipc, tls")),
        pytest.param("ipc", "unix", marks=pytest.mark.feature(39, "tcp, ipc, tls")),
        pytest.param("ipc:///run/x", "unix:/run/x", marks=pytest.mark.feature(39, "an address")),
        pytest.param("tcp://127.0.0.1:8080", "tcp:127.0.0.1:8080", marks=pytest.mark.feature(39, "an address")),
        (ChannelTransport.TcpWithLocalhost, "tcp(Localhost)"), (ChannelTransport.Local, "local"),
    ],
    ids=str,
)  # fmt: skip
def test_it_is_what_the_configuration_says(transport, text, fresh_process):
    enable_transport(transport)
    assert str(get_global_config()["default_transport"]) == text
    enable_transport(transport)


@pytest.mark.feature(39, "tcp, ipc, tls", "again: nothing")
def test_a_program_that_enables_tcp_attaches_and_spawns_as_any(daemons):
    enabled = "from monarch.actor import enable_transport\n" + "enable_transport('tcp')\n" * 2 + ATTACH
    daemons[0].run("""
workers = hosts.spawn_procs().spawn("worker", Worker)
assert len(set(workers.pid.call().get().values())) == 2
hosts.stop().get()
""", daemons[1], begin=enabled).ok()  # fmt: skip


@pytest.mark.parametrize(
    ("transport", "text"),
    [
        ("metatls", "metatls(IpV6)"), ("metatls-hostname", "metatls(Hostname)"), ("quic://h:1", "quic:h:1"),
        (ChannelTransport.MetaQuicWithIpV6, "metaquic(IpV6)"),
    ],
    ids=str,
)  # fmt: skip
def test_a_transport_that_is_not_there_says_so_and_leaves_nothing_behind(transport, text, fresh_process):
    before = get_global_config()["default_transport"]
    with pytest.raises(NotImplementedError, match="is not there; README.md lists what is") as info:
        enable_transport(transport)
    assert f"transport `{text}` " in str(info.value)
    assert get_global_config()["default_transport"] == before
    enable_transport("ipc")


@pytest.fixture
def fresh_process(monkeypatch):
    """As far as enable_transport looks."""
    from monarch._runtime import runtime
    from monarch._runtime import transport as own

    monkeypatch.setattr(runtime, "_started", False)
    monkeypatch.setattr(own, "_enabled", None)
    with configured():
        yield


@pytest.mark.feature(39, "nonsense")
@pytest.mark.parametrize("text", ["zzz", "", "foo://a", "tcp://h"])
def test_nonsense_is_a_value_error(text):
    with pytest.raises(ValueError) as info:
        enable_transport(text)
    assert str(info.value) == f"invalid str for BindSpec '{text}': invalid bind spec: {text}"


@pytest.mark.parametrize("value", [None, 3])
def test_another_type_is_a_type_error(value):
    with pytest.raises(TypeError, match="expected ChannelTransport enum, BindSpec, or str"):
        enable_transport(value)

"""ChannelTransport, bind specs, and enable_transport in scripts of their own (it is for the life of a process)."""

import copy
import pickle

import pytest
from script_run import Run

from monarch._config.transports import BindSpec
from monarch.actor import ChannelTransport, enable_transport
from monarch.config import Encoding

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


def test_a_different_one_is_refused():
    run("""
enable_transport("ipc")
assert refused(RuntimeError, "tcp") == (
    "Only one transport type may be enabled at one time. Currently enabled transport type is `unix`. "
    "Attempted to enable transport type `tcp(Hostname)`.")
this_host()
assert refused(RuntimeError, "local").startswith("Only one transport type may be enabled at one time. ")
""")


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
        ("tcp", "tcp(Hostname)"), ("tls", "tls"), ("metatls", "metatls(IpV6)"),
        ("metatls-hostname", "metatls(Hostname)"), ("ipc:///run/x", "unix:/run/x"),
        ("tcp://127.0.0.1:8080", "tcp:127.0.0.1:8080"),
        (ChannelTransport.TcpWithLocalhost, "tcp(Localhost)"), (ChannelTransport.MetaQuicWithIpV6, "metaquic(IpV6)"),
    ],
    ids=str,
)  # fmt: skip
def test_what_reaches_other_hosts_is_not_there_yet(transport, text):
    with pytest.raises(NotImplementedError, match="comes with several hosts, which are not there yet") as info:
        enable_transport_of_a_fresh_process(transport)
    assert f"transport `{text}` " in str(info.value)


def enable_transport_of_a_fresh_process(transport):
    from monarch._runtime import runtime
    from monarch._runtime import transport as own

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "_started", False)
        patch.setattr(own, "_enabled", None)
        enable_transport(transport)


def test_a_refused_one_leaves_nothing_behind():
    run("""
assert "comes with several hosts" in refused(NotImplementedError, "tcp")
assert str(get_global_config()["default_transport"]) == "unix"
enable_transport("ipc")
""")


@pytest.mark.parametrize("text", ["zzz", "", "foo://a", "tcp://h"])
def test_nonsense_is_a_value_error(text):
    with pytest.raises(ValueError) as info:
        enable_transport(text)
    assert str(info.value) == f"invalid str for BindSpec '{text}': invalid bind spec: {text}"


@pytest.mark.parametrize("value", [None, 3])
def test_another_type_is_a_type_error(value):
    with pytest.raises(TypeError, match="expected ChannelTransport enum, BindSpec, or str"):
        enable_transport(value)

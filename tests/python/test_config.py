"""monarch.config: keys, types, layers, and that they reach the processes that are started."""

import asyncio
import re
import subprocess
import sys
import typing
import warnings
from pathlib import Path

import pytest
from script_run import Run, program

import monarch
from monarch import config
from monarch._config import settings
from monarch._config.keys import ENVIRONMENT_ONLY, KEYS
from monarch._config.transports import BindSpec, ChannelTransport
from monarch._runtime import runtime
from monarch.actor import Actor, endpoint, this_host
from monarch.config import Encoding, configure, configured, get_global_config, get_runtime_config

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "configuration.md").read_text()
SETTABLE = sorted(set(KEYS) - ENVIRONMENT_ONLY)


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch):
    for _, _, variable in KEYS.values():
        monkeypatch.delenv(variable, raising=False)
    with configured():
        config.clear_runtime_config()
        yield


def error(kind, **settings):
    with pytest.raises(kind) as info:
        configure(**settings)
    assert type(info.value) is kind
    return str(info.value)


# type -> (a value, how it reads back, a text for the environment, how that reads back)
SAMPLES = {
    "duration": ("90s", "1m 30s", "120s", "2m"),
    "int": (2**64 - 1, 2**64 - 1, "17", 17),
    "int (0 to 255)": (255, 255, "17", 17),
    "int (at least 1)": (1, 1, "17", 17),
    "int or None": (3, 3, "17", 17),
    "float": (2, 2.0, "0.5", 0.5),
    "str": ("x", "x", "y", "y"),
    "Encoding": (Encoding.Json, Encoding.Json, "bincode", Encoding.Bincode),
    "transport": ("tls", BindSpec("tls"), "tcp", BindSpec("tcp")),
}


def sample(key):
    kind, default, variable = KEYS[key]
    if kind == "bool":
        return not default, not default, str(default), default
    return SAMPLES[kind]


# ---- Keys ----


@pytest.mark.feature(77, "values and types", 78, "a variable wins over a default")
@pytest.mark.parametrize("key", SETTABLE)
def test_a_key_is_set_read_back_and_overruled_by_its_variable(key, monkeypatch):
    value, reads, text, text_reads = sample(key)
    default = get_runtime_config()[key]
    assert get_global_config()[key] == default != reads
    configure(**{key: value})
    assert get_global_config()[key] == get_runtime_config()[key] == reads
    assert type(get_global_config()[key]) is type(reads)
    monkeypatch.setenv(KEYS[key][2], text)
    assert (get_global_config()[key], get_runtime_config()[key]) == (text_reads, reads)
    config.clear_runtime_config()
    assert (get_global_config()[key], get_runtime_config()[key]) == (text_reads, default)


@pytest.mark.feature(77, "values and types")
def test_the_dictionaries_have_all_keys_and_are_copies():
    for ask in (get_global_config, get_runtime_config):
        assert sorted(ask()) == SETTABLE
        ask()["cleanup_timeout"] = "9s"
        assert ask()["cleanup_timeout"] == "3s"


@pytest.mark.feature(77, 78)
@pytest.mark.parametrize("key", sorted(ENVIRONMENT_ONLY))
def test_an_environment_only_key_is_refused_and_read(key, monkeypatch):
    text = error(TypeError, **{key: KEYS[key][1]})
    assert text.startswith(f"configuration key `{key}` ") and KEYS[key][2] in text
    monkeypatch.setenv(KEYS[key][2], "7s")
    assert settings.get(key) == "7s"


@pytest.mark.feature(77, "errors")
@pytest.mark.parametrize("key", ["nope", "remote_alloc_bind_to_inaddr_any", "rdma_cq_busy_poll_window"])
def test_an_unknown_key_is_refused(key):
    assert error(ValueError, **{key: 1}) == f"invalid configuration key: `{key}`"


def test_a_misspelt_key_is_told_what_may_be_meant():
    text = "invalid configuration key: `defualt_transport` (did you mean `default_transport`?)"
    assert error(ValueError, defualt_transport="unix") == text


@pytest.mark.feature(77, "errors")
@pytest.mark.parametrize(
    ("key", "value", "kind", "inner"),
    [
        ("cleanup_timeout", 1, TypeError, "TypeError: 'int' object cannot be cast as 'str'"),
        ("file_log_level", None, TypeError, "TypeError: 'NoneType' object cannot be cast as 'str'"),
        ("prefix_with_rank", 1, TypeError, "TypeError: 'int' object cannot be cast as 'bool'"),
        ("tail_log_lines", "1", TypeError, "TypeError: 'str' object cannot be interpreted as an integer"),
        ("tail_log_lines", 1.0, TypeError, "TypeError: 'float' object cannot be interpreted as an integer"),
        ("tail_log_lines", None, TypeError, "TypeError: 'NoneType' object cannot be interpreted as an integer"),
        ("tail_log_lines", -1, TypeError, "OverflowError: can't convert negative int to unsigned"),
        ("tail_log_lines", 2**64, TypeError, "OverflowError: int too big, at most 18446744073709551615"),
        ("message_ttl_default", 256, TypeError, "OverflowError: int too big, at most 255"),
        ("message_latency_sampling_rate", "1", TypeError, "TypeError: must be real number, not str"),
        ("default_encoding", "json", TypeError, "TypeError: 'str' object cannot be cast as 'Encoding'"),
        ("max_cast_fanout", 0, ValueError, "expected an integer of at least 1"),
        ("tokio_worker_threads", 0, ValueError, "expected an integer of at least 1"),
        ("cleanup_timeout", "10x", TypeError, "ValueError: Invalid duration format '10x': unknown time unit \"x\""),
    ],
)
def test_a_wrong_value_says_what_is_wrong(key, value, kind, inner):
    text = error(kind, **{key: value})
    assert text.startswith(f"invalid value `{value!r}` for configuration key `{key}` ({inner}")


@pytest.mark.feature(77)
def test_none_is_a_value_where_the_table_says_so():
    configure(tokio_worker_threads=3)
    configure(tokio_worker_threads=None)
    assert get_runtime_config()["tokio_worker_threads"] is None


@pytest.mark.feature(77, "errors")
def test_nothing_is_set_if_anything_is_wrong():
    error(ValueError, tail_log_lines=5, nope=1)
    error(TypeError, tail_log_lines=5, prefix_with_rank="x")
    assert get_runtime_config()["tail_log_lines"] == 0


@pytest.mark.feature(77, 79, "durations")
@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ("300s", "5m"), ("60s", "1m"), ("0s", "0s"), ("1h30m", "1h 30m"), (" 1 h  30min ", "1h 30m"),
        ("1.5s", "1s 500ms"), ("1000ms", "1s"), ("1µs", "1us"), ("2days", "2days"), ("1week", "7days"),
        ("1M", "1month"), ("36h", "1day 12h"),
        ("123456789s", "3years 10months 28days 17h 57m 9s"), ("1.123456789s", "1s 123ms 456us 789ns"),
    ],
)  # fmt: skip
def test_a_duration_reads_back_in_one_spelling(text, reads):
    configure(cleanup_timeout=text)
    assert get_global_config()["cleanup_timeout"] == reads
    configure(cleanup_timeout=reads)
    assert get_global_config()["cleanup_timeout"] == reads


@pytest.mark.feature(77, 79)
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "value was empty"), ("10", "time unit needed, for example 10sec or 10ms"), ("abc", "expected number at 0"),
        ("-1s", "expected number at 0"), ("1h,30m", "invalid character at 2"), ("1_000s", "invalid character at 1"),
        ("1.s", "invalid character at 1"), ("1.5ns", "number is too large"), ("1s 1", "time unit needed"),
        ("99999999999999999999s", "number is too large"), ("10S", 'unknown time unit "S"'),
    ],
)  # fmt: skip
def test_a_text_that_is_no_duration_says_why(text, why):
    assert f"Invalid duration format '{text}': {why}" in error(TypeError, cleanup_timeout=text)


def test_what_is_for_ever_fits_the_core():
    configure(process_exit_timeout="18446744073709551615s")
    assert runtime.limit("process_exit_timeout") == 1e9


@pytest.mark.feature(77, 79, "texts, members and addresses", "a bind spec is read back")
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (ChannelTransport.TcpWithHostname, "tcp(Hostname)"), (BindSpec("local"), "local"), ("tcp", "tcp(Hostname)"),
        ("unix", "unix"), ("tls", "tls"), ("tcp(Localhost)", "tcp(Localhost)"), ("metatls(IpV6)", "metatls(IpV6)"),
        ("tcp://127.0.0.1:8080", "tcp:127.0.0.1:8080"), ("tcp://*:80", "tcp:[::]:80"),
        ("tcp://[::1]:80", "tcp:[::1]:80"),
        ("ipc:///run/x", "unix:/run/x"), ("ipc://@x", "unix:@x"), ("inproc://3", "local:3"), ("tls://h:9", "tls:h:9"),
    ],
)  # fmt: skip
def test_a_transport_reads_back_as_a_bind_spec(value, text):
    configure(default_transport=value)
    spec = get_global_config()["default_transport"]
    assert type(spec) is BindSpec and str(spec) == text
    configure(default_transport=text)
    assert get_global_config()["default_transport"] == spec


@pytest.mark.feature(77, 79)
@pytest.mark.parametrize(
    "text",
    ["ipc", "metatls", "TCP", "", "zzz", "foo://a", "tcp://h", "tcp://:1", "tcp://h:65536", "tcp://h:x", "inproc://x",
     "ipc://", "tcp://a:1@tcp://b:1", "tcp(hostname)", "tcp://::1:80"],
)  # fmt: skip
def test_a_text_that_is_no_transport_is_refused(text):
    wanted = f"invalid str for BindSpec '{text}': invalid bind spec: {text}"
    assert error(ValueError, default_transport=text) == wanted


@pytest.mark.feature(77, 79)
@pytest.mark.parametrize("value", [None, 3, ChannelTransport])
def test_a_transport_of_another_type_is_refused(value):
    assert error(TypeError, default_transport=value) == "expected ChannelTransport enum, BindSpec, or str"


# ---- Layers ----


@pytest.mark.feature(77, "restored at the end")
def test_configured_gives_what_is_in_force_and_restores_it(monkeypatch):
    monkeypatch.setenv("HYPERACTOR_MESSAGE_DELIVERY_TIMEOUT", "5s")
    configure(tail_log_lines=5)
    with pytest.raises(ZeroDivisionError):
        with configured(tail_log_lines=6, cleanup_timeout="9s", message_delivery_timeout="7s") as settings:
            assert settings == get_global_config()
            assert (settings["tail_log_lines"], settings["message_delivery_timeout"]) == (6, "5s")
            assert get_runtime_config()["message_delivery_timeout"] == "7s"
            with configured(tail_log_lines=7):
                configure(read_log_buffer=1)
            assert (get_runtime_config()["tail_log_lines"], get_runtime_config()["read_log_buffer"]) == (6, 100)
            raise ZeroDivisionError
    assert (get_runtime_config()["tail_log_lines"], get_runtime_config()["cleanup_timeout"]) == (5, "3s")
    with pytest.raises(ValueError):
        with configured(tail_log_lines=6, nope=1):
            raise AssertionError("entered")
    assert get_runtime_config()["tail_log_lines"] == 5


@pytest.mark.feature(77)
def test_configured_decorates_a_function():
    @configured(tail_log_lines=6)
    def ask():
        return get_runtime_config()["tail_log_lines"]

    assert (ask(), ask(), get_runtime_config()["tail_log_lines"]) == (6, 6, 0)


@pytest.mark.parametrize(
    ("key", "text", "why"),
    [
        ("cleanup_timeout", "7", "time unit needed"),
        ("tail_log_lines", "1_0", "expected an integer, got '1_0'"),
        ("message_ttl_default", "256", "int too big, at most 255"),
        ("max_cast_fanout", "0", "expected an integer of at least 1"),
        ("prefix_with_rank", "maybe", "expected one of 1, true, 0, false; got 'maybe'"),
        ("default_encoding", "xml", "expected one of bincode, serde_json, serde_multipart; got 'xml'"),
        ("default_transport", "ipc", "invalid bind spec: ipc"),
        ("message_latency_sampling_rate", "x", "could not convert"),
    ],
)
def test_a_variable_that_makes_no_sense_is_ignored_with_one_warning(key, text, why, monkeypatch):
    default = get_global_config()[key]
    monkeypatch.setenv(KEYS[key][2], text)
    with pytest.warns(RuntimeWarning) as warned:
        assert get_global_config()[key] == default
    (warning,) = warned
    assert str(warning.message).startswith(f"environment variable {KEYS[key][2]} is ignored: ")
    assert why in str(warning.message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert get_global_config()[key] == default


@pytest.mark.parametrize(
    ("name", "text", "wants"),
    [
        ("MONARCH_TRANSPORT", "foo", "shm or unix"),
        ("MONARCH_ARENA_BYTES", "1e9", "a number of bytes"),
        ("MONARCH_ARENA_BYTES", "-5", "a number of bytes"),
        ("MONARCH_SPAWN", "zzz", "exec"),
        ("MONARCH_RDMA_PATHS", "shm,foo", "a list of shm, cma, cuda-ipc, tcp, ucx"),
        ("MONARCH_ARENA_BYTES", "9" * 20, "a number of bytes"),
        ("MONARCH_EXIT_GRACE", "x", "a number of seconds"),
        ("MONARCH_EXIT_GRACE", "-1", "a number of seconds"),
    ],
)
def test_a_variable_that_is_no_key_is_ignored_with_a_warning_too(name, text, wants):
    script = """
class One(Actor):
    @endpoint
    def get(self):
        return 1

print(this_host().spawn_procs().spawn("one", One).get.call_one().get())
"""
    run = Run(script, env={name: text}).done()
    assert run.out == "1\n" and run.err.count("RuntimeWarning") == 1
    assert f"environment variable {name} is ignored: it must be {wants}, but is {text!r}" in run.err


def test_an_empty_variable_is_none(monkeypatch):
    monkeypatch.setenv("HYPERACTOR_READ_LOG_BUFFER", "")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert get_global_config()["read_log_buffer"] == 100


CHILDREN = program("config/children.py")


@pytest.mark.feature(77, 78, "what is configured reaches children")
@pytest.mark.parametrize("way", ["fork", "exec"])
def test_what_is_configured_reaches_children_and_theirs(way):
    Run(CHILDREN + """
configure(tail_log_lines=5, cleanup_timeout="9s", default_transport="tcp", default_encoding=Encoding.Json)
a = this_host().spawn_procs().spawn("a", A)
configure(tail_log_lines=6)
expected = ["5", "8s", "tcp(Hostname)", "Encoding.Json"]  # the environment wins, there too
assert a.ask.call_one().get() == [expected + ["100"], DEFAULTS]
assert a.ask_child.call_one().get() == [expected + ["7"], DEFAULTS]
assert get_global_config()["read_log_buffer"] == 100
""", way=way, env={"HYPERACTOR_CLEANUP_TIMEOUT": "8s"}).ok()  # fmt: skip


class Echo(Actor):
    @endpoint
    def echo(self, value):
        return value, get_global_config()["default_encoding"]


@pytest.mark.feature(76, "ends of different encodings", "below and above the threshold")
@pytest.mark.parametrize("there", [Encoding.Bincode, Encoding.Json, Encoding.Multipart])
def test_ends_of_different_encodings_understand_each_other(there):
    with configured(default_encoding=there, small_write_threshold=64):
        procs = this_host().spawn_procs()
    with procs:
        echo = procs.spawn("echo", Echo)
        for here in (Encoding.Bincode, Encoding.Json, Encoding.Multipart):
            with configured(default_encoding=here, small_write_threshold=256):
                for value in ({"nested": [1, None]}, *(bytes(size) for size in (0, 63, 64, 255, 256, 100_000))):
                    assert echo.echo.call_one(value).get(timeout=20) == (value, there)


def test_a_child_loads_no_configuration_if_nothing_is_configured():
    Run(program("config/a_child_loads_no_configuration_if_nothing_is_configured.py")).ok()


def test_importing_the_api_loads_no_configuration():
    code = (
        "import sys, monarch, monarch.actor; "
        "print([m for m in sys.modules if m in ('monarch._config.settings', 'monarch._config.keys', 'monarch.config')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# ---- What the keys do ----

HANGING = program("config/hanging.py")


def test_cleanup_timeout_limits_all_hooks_of_a_process_that_ends():
    run = Run(HANGING + """
configure(cleanup_timeout="50ms")
assert time_to_stop(Sync) < 2.5  # 3 s by default
""").ok()  # fmt: skip
    assert "cleaning up" in run.out


def test_cleanup_timeout_cancels_an_async_hook():
    run = Run(HANGING + """
configure(cleanup_timeout="50ms")
a = this_host().spawn_procs().spawn("a", Async)
a.ready.call_one().get()
a.stop().get()
input()
""")  # fmt: skip
    assert float(run.line("cancelled after")) < 2.5  # 3 s by default
    run.tell("done\n")
    run.done()
    assert run.status == 0 and "__cleanup__ failed" in run.err and "cancelled after 0.05 s (cleanup_timeout)" in run.err


@pytest.mark.feature(77, 78, "a variable wins over a default")
def test_cleanup_timeout_is_taken_from_the_environment():
    Run(HANGING + "assert time_to_stop(Sync) < 2.5", env={"HYPERACTOR_CLEANUP_TIMEOUT": "50ms"}).ok()


def test_process_exit_timeout_limits_the_end_of_a_process():
    Run(HANGING + """
configure(cleanup_timeout="1h", process_exit_timeout="50ms")
assert time_to_stop(Sync) < 5  # 10 s by default
""").ok()  # fmt: skip


# ---- Tests under several configurations ----

DECORATED = program("config/decorated.py")


@pytest.mark.feature(80)
def test_a_test_runs_under_all_combinations_or_by_position(tmp_path):
    (tmp_path / "test_them.py").write_text(DECORATED)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-v",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        "test_them.py",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "11 passed" in done.stdout
    assert "test_pairs[message_ttl_default=1-prefix_with_rank=False]" in done.stdout


@pytest.mark.feature(80)
def test_an_async_test_is_configured_while_it_runs():
    @config.parametrize_config(tail_log_lines=[4])
    async def ask():
        await asyncio.sleep(0)
        return get_global_config()["tail_log_lines"]

    assert asyncio.run(ask(monarch_config={"tail_log_lines": 4})) == 4
    assert get_global_config()["tail_log_lines"] == 0


@pytest.mark.feature(77)
def test_wrong_numbers_of_values_are_refused():
    with pytest.raises(ValueError, match="every key needs as many values"):
        config.parametrize_config_pointwise(tail_log_lines=[1, 2], read_log_buffer=[1])(lambda: None)
    with pytest.raises(ValueError, match="tail_log_lines has no values"):
        config.parametrize_config(tail_log_lines=[])(lambda: None)


def test_pytest_is_loaded_only_by_those_who_use_it():
    code = "import sys, monarch.config; print([m for m in ('pytest', 'inspect') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert done.stdout == "[]\n", done.stderr


# ---- What is written about it ----


def rows(page, columns):
    pattern = r"^\|" + r" ((?:[^|`]|`[^`]*`)+?) \|" * columns + "$"
    return [match.groups() for match in re.finditer(pattern, page, re.MULTILINE)]


def listed_keys():
    """key -> (type, default, variable, meaning), from the tables of the page."""
    found = {row[0].strip("`"): row[1:] for row in rows(PAGE, 5) if row[0].startswith("`")}
    return {
        key: (kind, default.strip("`"), name.strip("`"), text) for key, (kind, default, name, text) in found.items()
    }


@pytest.mark.feature(77)
def test_the_page_lists_every_key_as_it_is():
    written = {key: '""' if default == "" else str(default) for key, (_, default, _) in KEYS.items()}
    expected = {key: (kind, written[key], variable) for key, (kind, _, variable) in KEYS.items()}
    assert {key: row[:3] for key, row in listed_keys().items()} == expected
    assert list(listed_keys()) == list(KEYS)


@pytest.mark.feature(77)
def test_the_keys_without_a_meaning_are_those_that_nobody_asks_for():
    package = ROOT / "python" / "monarch"
    sources = [path for path in package.rglob("*.py") if path.parent.name != "_config" and path.name != "config.py"]
    text = "\n".join(path.read_text() for path in sources)
    asked_for = {key for key in KEYS if f'"{key}"' in text}
    assert asked_for == {key for key, row in listed_keys().items() if not row[3].startswith("none")}


def test_the_page_lists_every_variable_of_the_package():
    names = set()
    for path in (ROOT / "python" / "monarch").rglob("*.py"):
        names |= set(re.findall(r'"(MONARCH_[A-Z_]+)"', path.read_text()))
    for folder in ("src", "bindings"):
        for path in (ROOT / folder).rglob("*.cc"):
            if "testing" not in path.parts and not path.name.endswith(("_test.cc", "_bench.cc")):
                names |= set(re.findall(r'getenv\("(MONARCH_[A-Z_]+)"', path.read_text()))
    names = {name for name in names if not name.endswith("_")} - {variable for _, _, variable in KEYS.values()}
    assert names == {name.strip("`") for name, _ in rows(PAGE, 2) if name.startswith("`MONARCH_")}


def test_the_limits_that_are_known_without_the_configuration_are_its_defaults():
    assert {key: settings.seconds(key) for key in runtime.DEFAULT_LIMITS} == runtime.DEFAULT_LIMITS
    assert all(KEYS[key][2] == f"HYPERACTOR_{key.upper()}" for key in runtime.DEFAULT_LIMITS)


@pytest.mark.feature(77)
def test_type_checkers_know_the_keys_and_their_types():
    hints = typing.get_type_hints(config.ConfigureArgs)
    assert sorted(hints) == SETTABLE
    types = {"duration": str, "transport": ChannelTransport | BindSpec | str, "int or None": int | None,
             "bool": bool, "float": float, "str": str, "Encoding": Encoding}  # fmt: skip
    assert hints == {key: types.get(KEYS[key][0], int) for key in SETTABLE}


def test_the_functions_are_attributes_of_the_package_too():
    names = ["clear_runtime_config", "configure", "configured", "get_global_config", "get_runtime_config"]
    assert all(getattr(monarch, name) is getattr(config, name) for name in names)
    assert set(names) < set(monarch.__all__)
    assert config.__all__ == sorted([*names, "ConfigureArgs", "Encoding", "parametrize_config",
                                     "parametrize_config_pointwise"])  # fmt: skip
    with pytest.raises(AttributeError, match="module 'monarch.config' has no attribute 'nope'"):
        config.nope


def test_the_settings_of_monarch_actor_are_a_module():
    code = (
        "import monarch.actor; assert monarch.actor.config.prefix_python_logs_with_actor is True\n"
        "from monarch.actor import config; config.prefix_python_logs_with_actor = False\n"
        "import monarch.actor.config; assert monarch.actor.config.prefix_python_logs_with_actor is False\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

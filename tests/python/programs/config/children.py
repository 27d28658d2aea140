from monarch.actor import Actor, endpoint, this_host
from monarch.config import Encoding, configure, get_global_config, get_runtime_config  # noqa: F401 (in the tests)


class A(Actor):
    @endpoint
    def ask(self):
        keys = "tail_log_lines", "cleanup_timeout", "default_transport", "default_encoding", "read_log_buffer"
        return [[str(ask()[key]) for key in keys] for ask in (get_global_config, get_runtime_config)]

    @endpoint
    def ask_child(self):
        configure(read_log_buffer=7)
        return this_host().spawn_procs().spawn("b", A).ask.call_one().get()


DEFAULTS = ["0", "3s", "unix", "Encoding.Multipart", "100"]

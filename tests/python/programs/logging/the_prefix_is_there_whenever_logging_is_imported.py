from monarch.actor import Actor, endpoint, this_host, this_proc


class A(Actor):
    @endpoint
    def log(self):
        import inspect
        import logging

        logging.warning("late")
        assert inspect.getsource(logging).startswith("# Copyright")
        assert type(logging.__spec__.loader).__name__ == "SourceFileLoader"


local = this_proc().spawn("local", A)
local.log.call_one().get()
this_host().spawn_procs().spawn("a", A).log.call_one().get()
import logging  # noqa: E402

logging.warning("the script's own")

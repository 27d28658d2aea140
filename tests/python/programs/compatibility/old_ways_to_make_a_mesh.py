import os
import sys
import warnings

warnings.simplefilter("ignore")
from monarch.proc_mesh import local_proc_mesh, proc_mesh  # noqa: E402
from monarch.service import Actor, ServiceCallFailedException, endpoint  # noqa: E402


class Old(Actor):
    @endpoint
    def env(self, name):
        return os.environ.get(name), getattr(sys, "was_set_up", None)

    @endpoint
    def fail(self):
        raise ValueError("old")


def setup():
    sys.was_set_up = True  # type: ignore[attr-defined]


procs = proc_mesh(gpus=2, env={"OLD": "value"}, setup=setup).get()
assert procs.sizes == {"hosts": 1, "gpus": 2}
old = procs.spawn("old", Old).get()  # type: ignore[attr-defined]
assert old.env.call("OLD").get().values() == [("value", True)] * 2
try:
    old.slice(hosts=0, gpus=0).fail.call_one().get()
except ServiceCallFailedException as error:
    assert "old" in str(error)
else:
    raise AssertionError("no error")
os.environ["CUDA_VISIBLE_DEVICES"] = "3,5,6"
assert proc_mesh().sizes == {"hosts": 1, "gpus": 3}
assert local_proc_mesh(gpus=1, hosts=2).sizes == {"hosts": 2, "gpus": 1}

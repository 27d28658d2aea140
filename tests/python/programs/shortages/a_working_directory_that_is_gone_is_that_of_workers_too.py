import os
import tempfile

from monarch.actor import Actor, endpoint, this_host


class Where(Actor):
    @endpoint
    def entries(self):
        return os.listdir("."), os.readlink("/proc/self/cwd")


folder = tempfile.mkdtemp()
os.chdir(folder)
os.rmdir(folder)
for _ in range(2):
    where = this_host().spawn_procs().spawn("where", Where)
    assert where.entries.call_one().get(timeout=20) == ([], folder + " (deleted)")
    os.environ["OMP_NUM_THREADS"] = "1"  # the next one is not forked

"""What an actor has spawned, actors and processes, ends with it: first they, then its own clean-up."""

import os
import select

import pytest

from monarch.actor import Actor, SupervisionError, context, endpoint, this_host, this_proc

LIMIT = 30


class Leaf(Actor):
    def __init__(self, path, name):
        self.path, self.name = path, name

    @endpoint
    def pid(self):
        return os.getpid()

    def __cleanup__(self, exc):
        with open(self.path, "a") as file:
            file.write(f"{self.name}\n")


class Owner(Leaf):
    def __init__(self, path, fails=False):
        super().__init__(path, "owner")
        self.leaf = this_proc().spawn("leaf", Leaf, path, "child")
        self.nested = this_host().spawn_procs({"gpus": 2}).spawn("nested", Leaf, path, "nested")
        self.nested.pid.call().get(timeout=LIMIT)
        if fails:
            raise ValueError("it does not want to be")

    @endpoint
    def meshes(self):
        return self.leaf, self.nested

    @endpoint
    def fail(self):
        raise ValueError("nobody is told")

    @endpoint
    def end(self):
        context().actor_instance.stop("enough")


class AsyncOwner(Owner):
    @endpoint
    async def nothing(self):
        pass


def names_in(path):
    return path.read_text().split()


def ended(pid):
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([pidfd], [], [], LIMIT)[0])
    finally:
        os.close(pidfd)


ENDS = {
    "stop": lambda owner: owner.stop().get(timeout=LIMIT),
    "failure": lambda owner: owner.fail.broadcast(),
    "by itself": lambda owner: owner.end.broadcast(),
}


@pytest.mark.feature(55, 69, "what it owned ends")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("kind", [Owner, AsyncOwner])
def test_what_an_actor_owns_ends_with_it_and_before_its_clean_up(tmp_path, kind, end):
    path = tmp_path / "ends"
    with this_host().spawn_procs() as procs:
        owner = procs.spawn("owner", kind, path)
        leaf, nested = owner.meshes.call_one().get(timeout=LIMIT)
        pids = nested.pid.call().get(timeout=LIMIT).values()
        ENDS[end](owner)
        assert all(ended(pid) for pid in pids)
        with pytest.raises(SupervisionError, match="stopped: its owner .* owner> has ended"):
            leaf.pid.call_one().get(timeout=LIMIT)
        owner.stop().get(timeout=LIMIT)  # when it is over
        *owned, last = names_in(path)
        assert (sorted(owned), last) == (["child", "nested", "nested"], "owner")
        assert procs.spawn("other", Leaf, path, "other").pid.call_one().get(timeout=LIMIT)


def test_so_does_what_a_failed_constructor_has_spawned(tmp_path):
    path = tmp_path / "ends"
    with this_host().spawn_procs() as procs:
        owner = procs.spawn("owner", Owner, path, True)
        with pytest.raises(SupervisionError, match="it does not want to be"):
            owner.pid.call_one().get(timeout=LIMIT)
        owner.stop().get(timeout=LIMIT)
        assert sorted(names_in(path)) == ["child", "nested", "nested"]


class Many(Actor):
    @endpoint
    def make(self, count):
        for _ in range(count):
            this_proc().spawn("leaf", Leaf, "/dev/null", "leaf").stop().get(timeout=LIMIT)
        return len(context().actor_instance._owned._entries)


def test_an_owner_does_not_keep_those_that_have_ended():
    with this_host().spawn_procs() as procs:
        assert procs.spawn("many", Many).make.call_one(300).get(timeout=LIMIT) <= 64

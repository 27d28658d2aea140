import multiprocessing
import sys

from monarch.actor import Actor, endpoint


def use_all(method):
    many = multiprocessing.get_context(method)
    with many.Pool(2) as pool:
        assert pool.map(abs, range(-20, 0)) == list(range(20, 0, -1))
    queue = many.Queue()
    process = many.Process(target=queue.put, args=("from the child",))
    process.start()
    assert queue.get(timeout=20) == "from the child"
    process.join(20)
    assert process.exitcode == 0
    process = many.Process(target=sys.exit, args=(7,))
    process.start()
    process.join(20)
    assert process.exitcode == 7


class Loader(Actor):
    @endpoint
    def use(self, method, array):
        use_all(method)
        return int(array.sum())

    @endpoint
    async def use_async(self, method, array):
        use_all(method)
        return int(array.sum())

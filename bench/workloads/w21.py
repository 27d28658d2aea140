"""W21: torchstore, a store of tensors: a state dict that a client puts into a volume in another process, and gets.

W21p: put_state_dict. W21g: get_state_dict, into new tensors. W21i: into tensors that are there. W21c, beside them: the
dictionary cloned in one process. Rates are of the dictionary's bytes, of the median call. torchstore chooses the way of
the tensors, as it is installed: buffers where its monarch says that they work, else messages ("way" in the JSON file).
W21mp, W21mg, W21mi: the same, told to send messages. Ray has no torchstore: there it is a dictionary of NumPy's arrays
in its object store, of which a volume has the reference.
"""

import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from harness import expect, load_system, median, parse_arguments, run_rows  # noqa: E402

SIZES = {"64M": 64 << 20, "1G": 1 << 30}
OPERATIONS = {"p": "put", "g": "get", "i": "get_into", "mp": "put", "mg": "get", "mi": "get_into", "c": "clone"}
ROWS = [f"W21{kind}_{size}" for size in SIZES for kind in OPERATIONS]
CALLS_MIN = 3


def measure(store, name, by_messages, seconds):
    way = store.choose(by_messages)
    operate = store.operation(name)
    turn, put = 0, store.operation("put")
    put(turn)
    times, end = [], None
    while end is None or time.perf_counter() < end or len(times) < CALLS_MIN:
        if name == "put":
            turn += 1
        elapsed, marks = operate(turn)
        expect(marks, {float(turn)})
        if end is not None:
            times.append(elapsed)
        else:
            end = time.perf_counter() + seconds
    return {
        "unit": "GB/s",
        "value": store.bytes / median(times),
        "count": len(times),
        "way": way,
        "samples": [store.bytes / each for each in times],
    }


def main():
    arguments = parse_arguments(ROWS)
    system = load_system(arguments.system)
    stores = {}

    def row_of(row):
        def run():
            kind, size = row[3:].split("_")
            if size not in stores:
                while stores:
                    stores.popitem()[1].end()
                stores[size] = system.store(SIZES[size])
            return measure(stores[size], OPERATIONS[kind], kind[0] == "m", arguments.seconds)

        return run

    run_rows(arguments, system, {row: row_of(row) for row in ROWS})
    while stores:
        stores.popitem()[1].end()


main()

import base64
import copy  # noqa: F401 (what follows in the tests uses it)
import os
import pickle
import sys

import cloudpickle


def show(*values):
    print("handle", base64.b64encode(cloudpickle.dumps(values)).decode(), flush=True)


def given():
    return pickle.loads(base64.b64decode(os.environ["HANDLE"]))


def runtime_files():
    folder = os.environ["XDG_RUNTIME_DIR"]
    return sorted(os.path.join(base, name) for base, _, names in os.walk(folder) for name in names)


def outcome(use):
    try:
        return use()
    except Exception as error:
        return type(error).__name__ + ": " + str(error)


def line():
    return sys.stdin.readline().strip()

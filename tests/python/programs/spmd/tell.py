"""Tells what it sees of itself, in the file that is named first."""

import json
import os
import sys

import __main__

with open(f"{sys.argv[1]}.{os.environ['RANK']}", "w") as file:
    json.dump(
        {
            "name": __name__,
            "is_main": vars(__main__) is globals(),
            "file": __file__,
            "argv": sys.argv,
            "path": sys.path[0],
            "port": os.environ["MASTER_PORT"],
        },
        file,
    )

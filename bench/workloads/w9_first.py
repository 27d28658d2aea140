"""One fresh start of a system: from the end of its import to the first answer of one actor in one new process."""

import json
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from harness import expect, load_system  # noqa: E402

system = load_system(sys.argv[1])
imported = time.perf_counter()
answers, end = system.spawn_round(1)
elapsed_ms = (time.perf_counter() - imported) * 1e3
expect(answers, [1])
print(json.dumps({"ms": elapsed_ms}), flush=True)
end()

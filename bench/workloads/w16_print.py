"""A script whose worker processes print to its stdout; reports on a descriptor of its own. For w16.py.

w16_print.py SYSTEM REPORT_FD lines|times PROCS COUNT [GAP_S]
"""

import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from harness import NotOffered, load_system, print_lines, print_times  # noqa: E402


class BarePipe:
    """Forked processes that print into the one pipe that is this program's stdout."""

    def start_printers(self, procs):
        self.procs = procs
        sys.stdout.reconfigure(line_buffering=True, write_through=False)

    def print_lines(self, count):
        ends = [self.fork(print_lines, count) for _ in range(self.procs)]
        return [float(open(end).read()) for end in ends]

    def print_times(self, count, gap_s):
        open(self.fork(print_times, count, gap_s)).read()

    def fork(self, function, *arguments):
        read_end, write_end = os.pipe()
        if os.fork() == 0:
            os.write(write_end, str(function(*arguments)).encode())
            os._exit(0)
        os.close(write_end)
        return read_end

    def stop(self):
        pass


def main():
    name, report_fd, what, procs, count, *gap_s = sys.argv[1:]
    system = BarePipe() if name == "limit" else load_system(name)
    report = {}
    try:
        system.start_printers(int(procs))
        if what == "lines":
            report["seconds"] = system.print_lines(int(count))
        else:
            system.print_times(int(count), float(gap_s[0]))
        system.stop()
    except NotOffered as reason:
        report = {"error": str(reason)}
    with open(int(report_fd), "w") as file:
        json.dump(report, file)


if __name__ == "__main__":
    main()

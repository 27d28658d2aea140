"""What the machine is and what else it did while the suite ran. Linux only."""

import glob
import os
import platform
import resource
import subprocess

TICKS = os.sysconf("SC_CLK_TCK")


def describe():
    model = "unknown"
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    with open("/proc/meminfo") as file:
        memory_kib = int(file.readline().split()[1])
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gib": round(memory_kib / 2**20, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "libc": " ".join(platform.libc_ver()),
    }


def commit(root):
    def git(*arguments):
        done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    return {
        "commit": git("rev-parse", "HEAD") or "unknown",
        "changed_files": len(git("status", "--porcelain").splitlines()),
    }


def installed(python, names):
    """Versions of the distributions `names` in the venv of `python`, read from their folders' names."""
    found = {}
    venv = os.path.dirname(os.path.dirname(os.path.abspath(python)))
    for folder in glob.glob(os.path.join(venv, "lib", "python*", "site-packages", "*.dist-info")):
        name, _, version = os.path.basename(folder)[: -len(".dist-info")].partition("-")
        if name.lower().replace("_", "-") in names:
            found[name.lower().replace("_", "-")] = version
    return found


class Activity:
    """CPU use of the whole machine since the object was made: steal, and what processes that are not ours took."""

    def __init__(self):
        self.before = self.read()

    @staticmethod
    def read():
        with open("/proc/stat") as file:
            user, nice, system, idle, iowait, irq, softirq, steal = map(int, file.readline().split()[1:9])
        own = sum(
            usage.ru_utime + usage.ru_stime
            for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        )
        busy = (user + nice + system + irq + softirq) / TICKS
        return {
            "busy": busy,
            "steal": steal / TICKS,
            "all": busy + (idle + iowait + steal) / TICKS,
            "own": own,
        }

    def shares(self):
        """-> {"steal", "others"}: fractions of the machine's CPU time."""
        now = self.read()
        passed = {key: now[key] - self.before[key] for key in now}
        total = passed["all"] or 1.0
        return {
            "steal": passed["steal"] / total,
            "others": max(0.0, (passed["busy"] - passed["own"]) / total),
        }

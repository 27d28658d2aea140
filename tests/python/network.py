"""A few machines, their cables and a switch, each of them a network namespace: for a test."""

import os
import re
import shutil
import subprocess
import time

from hostd import LIMIT, Daemon
from script_run import PROGRAMS, Run

PATH = os.pathsep.join([str(PROGRAMS / "namespaces"), *filter(None, [os.environ.get("PYTHONPATH")])])
HERE = "10.77.0.1"  # where the script is: at the switch
LINKS = """\
link set lo up
link add switch address 02:00:00:00:00:01 type bridge
link set switch up
addr add {here}/24 dev switch
"""
CABLE = """\
link add cable{number} type veth peer name eth0 netns {pid}
link set cable{number} master switch up
"""
HOST = """\
link set lo up
link set eth0 up
addr add {address}/24 dev eth0
"""


def why_not():
    """What keeps this user, on this kernel, from having a network of its own; nothing, if nothing does."""
    for tool in ("ip", "nsenter", "unshare"):
        if shutil.which(tool) is None:
            return f"no {tool}"
    probe = [*_unshare(), "ip", "link", "add", "probe", "type", "bridge"]
    done = subprocess.run(probe, capture_output=True, text=True)
    return f"no network of its own: {done.stderr.strip()}" if done.returncode else ""


def _unshare():
    return ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-r", "-n"]


class Machine:
    """A network namespace that lives as long as this, or as the test. ``inside``: what comes before a command there."""

    def __init__(self, maker):
        self._holder = subprocess.Popen(
            [*maker, "sh", "-c", "echo && exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._holder.stdout.read(1) == b"\n"
        self.pid = self._holder.pid
        self.user = [] if os.geteuid() == 0 else ["nsenter", "-t", str(self.pid), "-U", "--preserve-credentials"]
        self.inside = [*(self.user or ["nsenter", "-t", str(self.pid)]), "-n"]

    def ip(self, commands):
        done = subprocess.run([*self.inside, "ip", "-batch", "-"], input=commands, text=True, capture_output=True)
        assert done.returncode == 0, (commands, done.stderr)

    def end(self):
        self._holder.communicate()


class Network:
    """Machines on one switch, each at ``addresses[number]``, with a ``monarch-hostd`` on each."""

    def __init__(self, folder, machines):
        self.folder = folder
        self.switch = Machine(_unshare())
        self.switch.ip(LINKS.format(here=HERE))
        self.machines = [Machine([*self.switch.user, "unshare", "-n"]) for _ in range(machines)]
        self.addresses = [f"10.77.0.{number + 2}" for number in range(machines)]
        self.switch.ip(
            "".join(CABLE.format(number=number, pid=machine.pid) for number, machine in enumerate(self.machines))
        )
        for machine, address in zip(self.machines, self.addresses, strict=True):
            machine.ip(HOST.format(address=address))
        self.daemons = [self.daemon(number) for number in range(machines)]

    def daemon(self, number, port=0):
        inside = [*self.machines[number].inside, "env", f"PYTHONPATH={PATH}"]
        return Daemon(self.folder, address=f"tcp://{self.addresses[number]}:{port}", inside=inside)

    def run(self, source, **env):
        """A script at the switch, which is given the addresses of all."""
        env = {"MONARCH_TOKEN_FILE": self.daemons[0].env["MONARCH_TOKEN_FILE"], "PYTHONPATH": PATH, **env}
        return Run(source, args=[daemon.address for daemon in self.daemons], env=env, inside=self.switch.inside)

    # ---- What happens to cables ----

    def pull(self, number):
        """Both ends see that nothing is plugged in."""
        self.switch.ip(f"link set cable{number} down\n")

    def put_back(self, number):
        self.switch.ip(f"link set cable{number} up\n")

    def silence(self, number):
        """Nothing gets through in either direction any more, and neither end sees that."""
        self.switch.ip(f"link set cable{number} nomaster\n")

    def mute(self, number):
        """What this one says to the script is lost, what it is told is not."""
        self.machines[number].ip(f"neigh replace {HERE} lladdr 02:00:00:00:00:99 dev eth0 nud permanent\n")

    def mend(self, number):
        """Whatever was done to it."""
        self.switch.ip(f"link set cable{number} master switch up\n")
        self.machines[number].ip("neigh flush dev eth0 nud permanent\n")

    def part(self, *numbers):
        """These do not reach each other any more. The others, and the script, reach them."""
        self._isolate(numbers, "on")

    def join(self, *numbers):
        self._isolate(numbers, "off")

    def shut(self, number, other):
        """From now on this one dials that one in vain, who may dial this one."""
        with open(f"/proc/{self.machines[other].pid}/net/tcp") as table:
            rows = [row.split() for row in list(table)[1:]]
        listening = [int(row[1].partition(":")[2], 16) for row in rows if row[3] == "0A"]
        rule = f"rule add to {self.addresses[other]} ipproto tcp dport {{port}} unreachable\n"
        self.machines[number].ip("".join(rule.format(port=port) for port in listening))

    def _isolate(self, numbers, how):
        self.switch.ip("".join(f"link set cable{number} type bridge_slave isolated {how}\n" for number in numbers))

    # ---- What can be seen ----

    @staticmethod
    def connections(process, peer):
        """Of the machine that this process is on, to that address: the ports at this end."""
        wanted = "".join(f"{int(part):02X}" for part in reversed(peer.split(".")))
        with open(f"/proc/{process}/net/tcp") as table:
            rows = [line.split() for line in table][1:]
        return {row[1].partition(":")[2] for row in rows if row[2].startswith(wanted + ":") and row[3] == "01"}

    def end(self):
        """Every daemon ends well, and has said nothing, but of connections that were given up where they began."""
        said = [daemon.end() for daemon in self.daemons]
        given_up = re.compile(r"(monarch(-hostd)?: refused a connection: .*TLS.*\n)*")
        assert all(status == 0 and given_up.fullmatch(text) for status, text in said), said

    def unplug(self):
        for machine in (*self.machines, self.switch):
            machine.end()


def wait_until(condition, what, limit=LIMIT):
    """For what nobody tells of: it is looked at now and then."""
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit} s: {what}"
        time.sleep(0.01)

"""Two worker loops in a network namespace of their own, where nobody reaches them, and one that can be reached.

Arguments: monarch-hostd, and a descriptor of a socket outside, which that one listens on. Prints addresses and pids.
"""

import fcntl
import os
import socket
import struct
import subprocess
import sys

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


def loopback_up():
    with socket.socket() as control:
        name, flags = struct.unpack("16sh", fcntl.ioctl(control, SIOCGIFFLAGS, struct.pack("16sh", b"lo", 0)))
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh", name, flags | IFF_UP))


def main():
    hostd, outside = sys.argv[1], int(sys.argv[2])
    loopback_up()
    daemons = []
    way_in = f"way-in@tcp://127.0.0.1:fd{outside}"
    for address, fds in (("tcp://127.0.0.2:0", []), ("tcp://127.0.0.3:0", []), (way_in, [outside])):
        command = [hostd, address, "--python", sys.executable]
        daemons.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, pass_fds=fds))
        assert daemons[-1].stdout is not None
        print(daemons[-1].stdout.readline().strip(), daemons[-1].pid, flush=True)
    os.close(outside)
    sys.stdin.read()  # whoever has started this ends
    for daemon in daemons:
        daemon.terminate()
    print("ended", *(daemon.wait() for daemon in daemons), flush=True)


main()

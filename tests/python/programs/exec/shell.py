"""A shell on a stand-in of a host, and how the terminal is before and after."""

import os
import signal
import termios

from monarch.job import hosts_from_config, shell

hosts = hosts_from_config("hosts")
if os.isatty(0):
    before = termios.tcgetattr(0)
try:
    status = shell(hosts.slice(hosts=0), env={"WHO": "me", "PROMPT_COMMAND": "PS1='ready> '"}, workdir="/")
    print(f"status {status}")
except BaseException as error:
    print(f"raised {type(error).__name__} {error}")
if os.isatty(0):
    print("restored" if termios.tcgetattr(0) == before else "not restored")
    assert signal.getsignal(signal.SIGWINCH) == signal.SIG_DFL

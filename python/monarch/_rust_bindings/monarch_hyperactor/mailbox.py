"""See ``monarch._src``."""

from monarch._ports.mailbox import Mailbox
from monarch._ports.port import PortReceiver

__all__ = ["Mailbox", "PortReceiver"]

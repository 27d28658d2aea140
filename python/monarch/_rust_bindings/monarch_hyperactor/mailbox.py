"""See ``monarch._src``."""

from monarch._port import Mailbox, PortReceiver

__all__ = ["Mailbox", "PortReceiver"]

"""Fails."""

raise KeyError("a script of ours")

"""Directories of one machine, to be read on another: FUSE, and the actors that bring what is read."""

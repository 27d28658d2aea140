"""Folders as they are sent to other hosts: what is in them, what differs, and how it is written. Knows no meshes."""

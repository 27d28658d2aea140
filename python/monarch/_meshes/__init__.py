"""Meshes of hosts, processes and actors: what a script holds in its hands."""

"""See ``monarch._src``."""

from monarch.job._store_job import host_mesh_from_store

__all__ = ["host_mesh_from_store"]

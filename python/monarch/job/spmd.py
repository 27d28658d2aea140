"""Jobs for programs of torchrun: hosts that are held for one, and hosts within a run of torchrun itself."""

from monarch.job._spmd_job import SPMDJob, serve
from monarch.job._store_job import StoreJob

__all__ = ["SPMDJob", "StoreJob", "serve"]

"""See ``monarch._src``."""

from monarch.job import DEFAULT_JOB_PATH, JobState, JobTrait, LocalJob, LoginJob, SSHJob, job_load, job_loads
from monarch.job._batch import BatchJob

__all__ = [
    "DEFAULT_JOB_PATH", "BatchJob", "JobState", "JobTrait", "LocalJob", "LoginJob", "SSHJob", "job_load", "job_loads",
]  # fmt: skip

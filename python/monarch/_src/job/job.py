"""See ``monarch._src``."""

from monarch.job import DEFAULT_JOB_PATH, JobState, JobTrait, LocalJob, job_load, job_loads

__all__ = ["DEFAULT_JOB_PATH", "JobState", "JobTrait", "LocalJob", "job_load", "job_loads"]

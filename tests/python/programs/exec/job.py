"""Saves a job of two hosts, in the working directory."""

from monarch.job import ProcessJob

ProcessJob({"trainers": 2, "generators": 1}).state().trainers.initialized.get()

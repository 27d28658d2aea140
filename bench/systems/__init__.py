"""Adapters: one module per API, each with a class System that offers the operations the workloads time.

An operation that a system has not is absent: `NotOffered` is raised for it. See base.py for the list.
"""

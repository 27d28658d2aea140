"""Jobs: hosts that somebody allocates, and that scripts come back to; the identities of hosts."""

from typing import TYPE_CHECKING

from monarch._public import load

if TYPE_CHECKING:
    from monarch._meshes.stand_ins import hosts_from_config
    from monarch._values.service_ids import (
        SERVICE_PROC_IDS_ENV,
        SERVICE_PROC_RANK_ENV,
        deserialize_service_proc_ids,
        new_service_proc_id,
        ranked_service_proc_id_from_env,
        serialize_service_proc_ids,
        service_proc_addr,
        service_proc_addrs,
    )
    from monarch.job._contexts import load_current_job, set_current_job
    from monarch.job._exec import exec_command
    from monarch.job._local import LocalJob
    from monarch.job._login import LoginJob
    from monarch.job._port_forwarder import PortForwarder
    from monarch.job._process_job import ProcessJob
    from monarch.job._saved import DEFAULT_JOB_PATH
    from monarch.job._shell import shell
    from monarch.job._slurm import SlurmJob
    from monarch.job._ssh import SSHJob
    from monarch.job._trait import JobState, JobTrait, job_load, job_loads
    from monarch.job._wishes import MeshAdminConfig, TelemetryConfig

__all__ = [
    "DEFAULT_JOB_PATH",
    "SERVICE_PROC_IDS_ENV",
    "SERVICE_PROC_RANK_ENV",
    "JobState",
    "JobTrait",
    "LocalJob",
    "MeshAdminConfig",
    "PortForwarder",
    "ProcessJob",
    "TelemetryConfig",
    "LoginJob",
    "SSHJob",
    "SlurmJob",
    "deserialize_service_proc_ids",
    "exec_command",
    "hosts_from_config",
    "job_load",
    "job_loads",
    "load_current_job",
    "new_service_proc_id",
    "ranked_service_proc_id_from_env",
    "serialize_service_proc_ids",
    "service_proc_addr",
    "service_proc_addrs",
    "set_current_job",
    "shell",
]

_LAZY = {
    "DEFAULT_JOB_PATH": "job._saved",
    "JobState": "job._trait",
    "JobTrait": "job._trait",
    "LocalJob": "job._local",
    "LoginJob": "job._login",
    "MeshAdminConfig": "job._wishes",
    "PortForwarder": "job._port_forwarder",
    "ProcessJob": "job._process_job",
    "SSHJob": "job._ssh",
    "SlurmJob": "job._slurm",
    "TelemetryConfig": "job._wishes",
    "exec_command": "job._exec",
    "load_current_job": "job._contexts",
    "set_current_job": "job._contexts",
    "shell": "job._shell",
    "hosts_from_config": "_meshes.stand_ins",
    "job_load": "job._trait",
    "job_loads": "job._trait",
    **{name: "_values.service_ids" for name in __all__ if "service" in name.lower()},
}


def __getattr__(name: str):
    return load(globals(), name, _LAZY)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

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
    from monarch.job._local import LocalJob
    from monarch.job._process_job import ProcessJob
    from monarch.job._saved import DEFAULT_JOB_PATH
    from monarch.job._trait import JobState, JobTrait, job_load, job_loads

__all__ = [
    "DEFAULT_JOB_PATH",
    "SERVICE_PROC_IDS_ENV",
    "SERVICE_PROC_RANK_ENV",
    "JobState",
    "JobTrait",
    "LocalJob",
    "ProcessJob",
    "deserialize_service_proc_ids",
    "hosts_from_config",
    "job_load",
    "job_loads",
    "new_service_proc_id",
    "ranked_service_proc_id_from_env",
    "serialize_service_proc_ids",
    "service_proc_addr",
    "service_proc_addrs",
]

_NOT_YET = {
    "exec_command", "load_current_job", "MeshAdminConfig", "PortForwarder", "set_current_job", "shell", "SlurmJob",
    "TelemetryConfig",
}  # fmt: skip


_LAZY = {
    "DEFAULT_JOB_PATH": "job._saved",
    "JobState": "job._trait",
    "JobTrait": "job._trait",
    "LocalJob": "job._local",
    "ProcessJob": "job._process_job",
    "hosts_from_config": "_meshes.stand_ins",
    "job_load": "job._trait",
    "job_loads": "job._trait",
    **{name: "_values.service_ids" for name in __all__ if "service" in name.lower()},
}


def __getattr__(name: str):
    return load(globals(), name, _LAZY, _NOT_YET)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

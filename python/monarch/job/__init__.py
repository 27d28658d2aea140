"""Jobs: hosts that somebody allocates. So far only a stand-in, and the identities of hosts."""

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

__all__ = [
    "SERVICE_PROC_IDS_ENV",
    "SERVICE_PROC_RANK_ENV",
    "deserialize_service_proc_ids",
    "hosts_from_config",
    "new_service_proc_id",
    "ranked_service_proc_id_from_env",
    "serialize_service_proc_ids",
    "service_proc_addr",
    "service_proc_addrs",
]

_NOT_YET = {
    "DEFAULT_JOB_PATH", "exec_command", "JobState", "JobTrait", "job_load", "job_loads", "load_current_job", "LocalJob",
    "MeshAdminConfig", "PortForwarder", "ProcessJob", "set_current_job", "shell", "SlurmJob", "TelemetryConfig",
}  # fmt: skip

_LAZY = {
    "hosts_from_config": "_meshes.stand_ins",
    **{name: "_values.service_ids" for name in __all__ if "service" in name.lower()},
}


def __getattr__(name: str):
    return load(globals(), name, _LAZY, _NOT_YET)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

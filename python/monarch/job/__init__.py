"""Jobs: hosts that somebody allocates. So far only a stand-in."""

from typing import TYPE_CHECKING

from monarch._public import load

if TYPE_CHECKING:
    from monarch._meshes.stand_ins import hosts_from_config

__all__ = ["hosts_from_config"]

_NOT_YET = {
    "DEFAULT_JOB_PATH", "deserialize_service_proc_ids", "exec_command", "JobState", "JobTrait", "job_load", "job_loads",
    "load_current_job", "LocalJob", "MeshAdminConfig", "new_service_proc_id", "PortForwarder", "ProcessJob",
    "ranked_service_proc_id_from_env", "serialize_service_proc_ids", "service_proc_addr", "service_proc_addrs",
    "SERVICE_PROC_IDS_ENV", "SERVICE_PROC_RANK_ENV", "set_current_job", "shell", "SlurmJob", "TelemetryConfig",
}  # fmt: skip


_LAZY = {"hosts_from_config": "_meshes.stand_ins"}


def __getattr__(name: str):
    return load(globals(), name, _LAZY, _NOT_YET)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

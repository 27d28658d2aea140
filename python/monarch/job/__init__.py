"""Jobs: hosts that somebody allocates. So far only a stand-in."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from monarch._hosts import hosts_from_config

__all__ = ["hosts_from_config"]

_NOT_YET = {
    "DEFAULT_JOB_PATH", "deserialize_service_proc_ids", "exec_command", "JobState", "JobTrait", "job_load", "job_loads",
    "load_current_job", "LocalJob", "MeshAdminConfig", "new_service_proc_id", "PortForwarder", "ProcessJob",
    "ranked_service_proc_id_from_env", "serialize_service_proc_ids", "service_proc_addr", "service_proc_addrs",
    "SERVICE_PROC_IDS_ENV", "SERVICE_PROC_RANK_ENV", "set_current_job", "shell", "SlurmJob", "TelemetryConfig",
}  # fmt: skip


def __getattr__(name: str):
    if name == "hosts_from_config":
        from monarch._hosts import hosts_from_config

        globals()[name] = hosts_from_config
        return hosts_from_config
    if name in _NOT_YET:
        from monarch._not_yet import not_yet

        raise not_yet(f"monarch.job.{name}")
    raise AttributeError(f"module 'monarch.job' has no attribute {name!r}")

"""The configuration keys: type, default, environment variable. ``docs/configuration.md`` says what each means here.

Types: ``duration`` (text, kept in one spelling), ``bool``, ``float``, ``str``, ``Encoding``, ``transport``, ``int``
(0 to 2^64-1), ``int (0 to 255)``, ``int (at least 1)``, ``int or None`` (at least 1). The names, types and defaults are
those of the public API; many are knobs of machinery that is not in this package and are taken so that programs run.
"""

from __future__ import annotations

from typing import Any

__all__ = ["ENVIRONMENT_ONLY", "KEYS"]

# key -> (type, default, environment variable)
KEYS: dict[str, tuple[str, Any, str]] = {}


def _group(prefix: str, *rows: tuple[Any, ...]) -> None:
    """Rows: key, type, default, and the environment variable where it is not the prefix and the key.

    (A key that starts with ``mesh_`` does not repeat that after the prefix.)
    """
    for key, kind, default, *variable in rows:
        KEYS[key] = kind, default, variable[0] if variable else prefix + key.removeprefix("mesh_").upper()


_group(
    "HYPERACTOR_",  # actors
    ("codec_max_frame_length", "int", 10 * 2**30),
    ("message_delivery_timeout", "duration", "30s"),
    ("message_ack_time_interval", "duration", "500ms"),
    ("message_ack_every_n_messages", "int", 1000),
    ("message_ttl_default", "int (0 to 255)", 64),
    ("message_latency_sampling_rate", "float", 0.01),
    ("pending_actor_delivery_timeout", "duration", "30s"),
    ("split_max_buffer_size", "int", 5),
    ("split_max_buffer_age", "duration", "50ms"),
    ("stop_actor_timeout", "duration", "10s"),
    ("cleanup_timeout", "duration", "3s"),
    ("process_exit_timeout", "duration", "10s"),
    ("process_memory_metric_interval", "duration", "5m"),
    ("host_spawn_ready_timeout", "duration", "30s"),
    ("server_heartbeat_interval", "duration", "1s"),
    ("forwarder_flush_timeout", "duration", "5s"),
    ("terminated_snapshot_retention", "int", 100),
    ("enable_dest_actor_reordering_buffer", "bool", True),
    ("sequencer_max_locked_keys", "int (at least 1)", 128),
    ("default_encoding", "Encoding", "Multipart"),
    ("stop_grace_period", "duration", "10s", "HYPERACTOR_REMOTE_STOP_GRACE_PERIOD"),
)
_group(
    "HYPERACTOR_",  # channels
    ("channel_net_rx_buffer_full_check_interval", "duration", "5s"),
    ("channel_tcp_keepalive_idle", "duration", "1m"),
    ("channel_tcp_congestion", "str", ""),
    ("channel_reconnect_timeout", "duration", "1m"),
)
_group(
    "",
    ("hyperactor_tls_cert", "str", "/etc/hyperactor/tls/tls.crt"),
    ("hyperactor_tls_key", "str", "/etc/hyperactor/tls/tls.key"),
    ("hyperactor_tls_ca", "str", "/etc/hyperactor/tls/ca.crt"),
)
_group(
    "HYPERACTOR_MESH_",  # meshes
    ("default_transport", "transport", "unix"),
    ("mesh_proc_spawn_max_idle", "duration", "30s"),
    ("actor_spawn_max_idle", "duration", "30s"),
    ("proc_stop_max_idle", "duration", "30s"),
    ("get_proc_state_max_idle", "duration", "1m"),
    ("get_actor_state_max_idle", "duration", "30s"),
    ("supervision_watchdog_timeout", "duration", "2m"),
    ("mesh_orphan_timeout", "duration", "1m"),
    ("mesh_attach_config_timeout", "duration", "1m"),
    ("mesh_terminate_concurrency", "int", 16),
    ("mesh_terminate_timeout", "duration", "10s"),
    ("mesh_bootstrap_enable_pdeathsig", "bool", True),
    ("proc_launcher_kind", "str", ""),
    ("use_direct_spawn", "bool", False),
    ("max_cast_dimension_size", "int", 16),
    ("max_cast_fanout", "int (at least 1)", 16),
    ("supervision_poll_frequency", "duration", "10s"),
)
_group(
    "HYPERACTOR_MESH_",  # logs
    ("enable_log_forwarding", "bool", False),
    ("enable_file_capture", "bool", False),
    ("tail_log_lines", "int", 0),
)
_group(
    "HYPERACTOR_",
    ("read_log_buffer", "int", 100),
    ("force_file_log", "bool", False),
    ("prefix_with_rank", "bool", True),
)
_group(
    "HYPERACTOR_MESH_",  # admin
    ("mesh_admin_addr", "str", "[::]:1729"),
    ("mesh_admin_resolve_actor_timeout", "duration", "200ms"),
    ("mesh_admin_max_concurrent_resolves", "int", 2),
    ("mesh_admin_single_host_timeout", "duration", "3s"),
    ("mesh_admin_query_child_timeout", "duration", "100ms"),
    ("mesh_admin_config_dump_bridge_timeout", "duration", "5s"),
    ("mesh_admin_tree_timeout", "duration", "10s"),
    ("mesh_admin_pyspy_timeout", "duration", "10s"),
    ("mesh_admin_pyspy_bridge_timeout", "duration", "13s"),
    ("mesh_admin_pyspy_client_timeout", "duration", "20s"),
    ("mesh_admin_pyspy_max_profile_duration", "duration", "5m"),
    ("pyspy_bin", "str", "", "PYSPY_BIN"),
)
_group(
    "MONARCH_HYPERACTOR_",  # the Python layer
    ("small_write_threshold", "int", 256),
    ("enable_unawaited_python_task_traceback", "bool", False),
    ("tokio_worker_threads", "int or None", None, "MONARCH_TOKIO_WORKER_THREADS"),
)
_group(
    "MONARCH_",  # this package only
    ("host_lease", "duration", "5s"),
    ("stopped_rank_lease", "duration", "0s"),
    ("rdma_encrypt", "bool", True),
)
_group(
    "",  # telemetry
    ("enable_otel_tracing", "bool", True),
    ("enable_otel_metrics", "bool", True),
    ("enable_recorder_tracing", "bool", True),
    ("enable_sqlite_tracing", "bool", False),
    ("file_log_level", "str", "", "MONARCH_FILE_LOG"),
    ("otel_metric_export_interval", "duration", "1s"),
    ("scuba_log_enter_exit", "bool", False),
    ("monarch_log_suffix", "str", ""),
    ("perfetto_trace_mode", "str", "user"),
)
_group(
    "MONARCH_",  # RDMA
    ("rdma_max_chunk_size_mb", "int", 64),
    ("rdma_allow_tcp_fallback", "bool", True),
    ("rdma_disable_ibverbs", "bool", False),
    ("rdma_tcp_fallback_parallelism", "int", 1),
    ("rdma_qp_init_timeout", "duration", "30s"),
    ("rdma_ibverbs_target", "str", ""),
    ("rdma_peer_device_affinity", "str", ""),
    ("rdma_max_nics_per_buffer", "int or None", None),
    ("rdma_min_stripe_size_kb", "int (at least 1)", 512),
    ("rdma_qps_per_cq", "int (at least 1)", 64),
    ("rdma_qps_per_peer", "int (at least 1)", 4),
    ("rdma_cq_poller_per_device", "bool", True),
    ("rdma_host_odp", "bool", False),
    ("rdma_runtime_worker_threads", "int", 4),
)

# configure() refuses these and the dictionaries leave them out. As children inherit the environment and not these as
# keys, what names files of one machine (TLS) stays on that machine.
ENVIRONMENT_ONLY = frozenset(
    {"hyperactor_tls_cert", "hyperactor_tls_key", "hyperactor_tls_ca", "supervision_poll_frequency",
     "perfetto_trace_mode"}
)  # fmt: skip

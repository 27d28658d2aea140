"""Which cluster, and as whom: as the official client reads it, and as ``kubectl`` is told."""

from __future__ import annotations

import json
import os
from typing import Any


class KubeConfig:
    """How a script outside of a cluster reaches its API server. A script inside, a pod, needs none."""

    def __init__(self) -> None:
        """That of a pod: its service account."""
        self._path: str | None = None
        self._config: Any = None  # kubernetes.client.Configuration; not pickled, since credentials are in there
        self._is_from_memory = False

    @classmethod
    def from_path(cls, path: str | os.PathLike[str]) -> KubeConfig:
        """A kubeconfig file, its current context; ``proxy-url`` counts. ``~`` is the home directory."""
        made = cls()
        made._path = os.path.abspath(os.path.expanduser(os.fspath(path)))
        return made

    @classmethod
    def from_config(cls, client_config: Any) -> KubeConfig:
        """A ``kubernetes.client.Configuration``. It is not saved with a job, which needs a fresh one when it is loaded.

        ``TypeError`` if it is something else.
        """
        from kubernetes import client

        if not isinstance(client_config, client.Configuration):
            raise TypeError(f"client_config must be a kubernetes.client.Configuration, but is {client_config!r}")
        made = cls()
        made._config, made._is_from_memory = client_config, True
        return made

    @property
    def out_of_cluster(self) -> bool:
        """Whether the script is not a pod, so that it reaches pods through the API server only."""
        return self._path is not None or self._is_from_memory

    def __repr__(self) -> str:
        if self._is_from_memory:
            return "KubeConfig.from_config(...)"
        return "KubeConfig()" if self._path is None else f"KubeConfig.from_path({self._path!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_config": None}

    @property
    def is_lost(self) -> bool:
        """Whether it was in memory, and has been loaded with a job."""
        return self._is_from_memory and self._config is None

    def client(self) -> Any:
        """A ``kubernetes.client.ApiClient``. ``RuntimeError`` says why there is none."""
        from kubernetes import client, config

        self.check()
        try:
            if self._config is not None:
                return client.ApiClient(self._config)
            if self._path is not None:
                return config.new_client_from_config(config_file=self._path, persist_config=False)
            found = client.Configuration()
            config.load_incluster_config(client_configuration=found)
            return client.ApiClient(found)
        except Exception as error:  # of YAML, of the file, and of what stands in there
            if self._path is not None:
                said = " ".join(str(error).split())
                raise RuntimeError(f"{self._path} cannot be used as a kubeconfig: {said}") from None
            if not isinstance(error, config.ConfigException):
                raise
            raise RuntimeError(
                f"this script runs in no pod of a cluster ({error}); from outside, say which cluster: "
                "KubernetesJob(..., kubeconfig=KubeConfig.from_path('~/.kube/config'))"
            ) from None

    def for_kubectl(self, scratch: str) -> list[str]:
        """Options of ``kubectl``. What is in memory is written to ``scratch``, for this user alone."""
        self.check()
        if self._config is None:
            return [] if self._path is None else ["--kubeconfig", self._path]
        fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(fd, "w") as file:
            json.dump(_as_file(self._config), file)  # which is YAML
        return ["--kubeconfig", scratch]

    def check(self) -> None:
        """``RuntimeError`` if it ``is_lost``."""
        if self.is_lost:
            raise RuntimeError(
                "a kubeconfig from memory is not saved with a job: make the job again, with the same meshes and "
                "kubeconfig=KubeConfig.from_config(...), and call state() or kill() on that"
            )


def _as_file(config: Any) -> dict[str, Any]:
    """A ``kubernetes.client.Configuration`` as a kubeconfig."""
    cluster = {
        "server": config.host, "certificate-authority": config.ssl_ca_cert, "proxy-url": config.proxy,
        "insecure-skip-tls-verify": not config.verify_ssl or None, "tls-server-name": config.tls_server_name,
    }  # fmt: skip
    bearer = config.get_api_key_with_prefix("authorization") or config.get_api_key_with_prefix("BearerToken")
    user = {
        "client-certificate": config.cert_file, "client-key": config.key_file,
        "token": bearer and bearer.split(" ")[-1],
    }  # fmt: skip
    return {
        "apiVersion": "v1", "kind": "Config", "current-context": "job",
        "clusters": [{"name": "job", "cluster": _without_none(cluster)}],
        "users": [{"name": "job", "user": _without_none(user)}],
        "contexts": [{"name": "job", "context": {"cluster": "job", "user": "job"}}],
    }  # fmt: skip


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}

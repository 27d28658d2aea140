"""A job over the stand-in for a cluster, as a pod of which this script finds it. argv: where it is saved, or "-"."""

import os
import sys

from kubernetes.config import incluster_config

from monarch.actor import Actor, endpoint
from monarch.job import job_load  # noqa: F401
from monarch.job.kubernetes import ImageSpec, KubeConfig, KubernetesJob  # noqa: F401

incluster_config.SERVICE_TOKEN_FILENAME = os.environ["SERVICE_ACCOUNT"] + "/token"
incluster_config.SERVICE_CERT_FILENAME = os.environ["SERVICE_ACCOUNT"] + "/ca.crt"


class Worker(Actor):
    @endpoint
    def variable(self, name: str) -> str | None:
        return os.environ.get(name)


def ips(hosts) -> list[str]:
    """Of the pods, by rank."""
    return hosts.spawn_procs().spawn("worker", Worker).variable.call("POD_IP").get().values()


path = None if sys.argv[1] == "-" else sys.argv[1]
port = int(os.environ["WORKER_PORT"])
IMAGE = ImageSpec("registry/monarch:1", resources={"cpu": 1})

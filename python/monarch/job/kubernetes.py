"""Jobs whose hosts are pods of a Kubernetes cluster. It takes ``pip install kubernetes``."""

import importlib.util

if importlib.util.find_spec("kubernetes") is None:
    raise RuntimeError("please install kubernetes to use KubernetesJob. `pip install kubernetes`")

from monarch.job._kube_config import KubeConfig
from monarch.job._kube_manifests import ImageSpec
from monarch.job._kubernetes_job import KubernetesJob

__all__ = ["ImageSpec", "KubeConfig", "KubernetesJob"]

"""A job whose hosts are pods of a Kubernetes cluster."""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from typing import Any

from monarch.job import _saved
from monarch.job._attached import check_mesh_name
from monarch.job._kube_api import Cluster, Unreachable
from monarch.job._kube_config import KubeConfig
from monarch.job._kube_forward import Forward
from monarch.job._kube_manifests import (
    POD_INDEX,
    PORT,
    ImageSpec,
    Mesh,
    check_name,
    check_template,
    mesh_body,
    secret_body,
    secret_name,
    selector_of,
    template_of,
    token_in,
)
from monarch.job._kube_pods import Pod, tell, wait_for_pods
from monarch.job._log import logger
from monarch.job._remote import RemoteJob
from monarch.job._trait import JobState, JobTrait

__all__ = ["KubernetesJob"]

_STILL_READY_S = 5.0


class KubernetesJob(RemoteJob):
    """A job whose hosts are pods: such as are there, or such as it has the cluster make. ``add_mesh`` says which.

    What it makes ends with :meth:`kill`, or with a script that has not saved it. :meth:`state` waits until all pods are
    ready, and says on stderr for which, and why; what it has made goes if that fails, or at Ctrl-C.
    """

    _is_mine = False  # whether this process has made what there is
    _outlives = False  # its script: it has been saved

    def __init__(
        self, namespace: str, timeout: int | None = None, kubeconfig: KubeConfig | None = None,
        attach_to: str | None = None,
    ) -> None:  # fmt: skip
        """What the cluster has against it is a ``RuntimeError``, once it is asked.

        Args:
            namespace: where the pods are.
            timeout: seconds that :meth:`state` waits for pods to be ready, then ``TimeoutError``; None: no limit.
            kubeconfig: which cluster; None: that which this script is a pod of. With one, the script is taken to be
                outside, and reaches the pods through one of them, by ``kubectl port-forward``.
            attach_to: in place of the port-forward, the address of a worker that this machine reaches,
                ``tcp://HOST:PORT``.
        """
        if not isinstance(namespace, str) or not namespace:
            raise ValueError(f"namespace must be a str that is not empty, but is {namespace!r}")
        if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int) or timeout <= 0):
            raise ValueError(f"timeout must be seconds, an int above 0, or None, but is {timeout!r}")
        if kubeconfig is not None and not isinstance(kubeconfig, KubeConfig):
            raise TypeError(f"kubeconfig must be a KubeConfig, such as KubeConfig.from_path(...), not {kubeconfig!r}")
        self._namespace, self._timeout, self._attach_to = namespace, timeout, attach_to
        self._kube = kubeconfig or KubeConfig()
        self._meshes: dict[str, Mesh] = {}

    def __repr__(self) -> str:
        meshes = ", ".join(f"{mesh.name}={mesh.count}" for mesh in self._meshes.values())
        return f"KubernetesJob({self._namespace!r}: {meshes})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_is_mine"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _outlives=True)

    def add_mesh(
        self, name: str, num_replicas: int, label_selector: str | None = None, pod_rank_label: str = POD_INDEX,
        image_spec: ImageSpec | None = None, port: int = PORT, pod_template: Any = None,
        labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        """One host for each pod. With ``image_spec`` or ``pod_template`` the cluster makes them, by a ``MonarchMesh``.

        ``ValueError`` says what does not fit together; ``RuntimeError`` if the job has been applied.

        Args:
            name: an attribute of what :meth:`state` returns; lower-case letters and digits, a letter first, at most 63.
            num_replicas: how many pods.
            label_selector: of pods that are there; None: those of the ``MonarchMesh`` of this name.
            pod_rank_label: the label with a pod's number, from 0, which is its rank.
            image_spec: an image that ``monarch worker`` is run in.
            port: of the worker in each pod. Left out: what ``MONARCH_PORT`` of pods that are there says.
            pod_template: in place of an image: a pod template, as a dict or an object of the kubernetes client. Its
                first container runs ``monarch worker``, or its own command, which finds ``MONARCH_TOKEN_FILE``.
            labels: of the ``MonarchMesh``, such as ``kueue.x-k8s.io/queue-name``.
            annotations: of the ``MonarchMesh``.
        """
        check_name(name)
        check_mesh_name(name)
        if self.active:
            raise RuntimeError(f"{name!r} cannot be added: the job has been applied. Add meshes before")
        if name in self._meshes:
            raise ValueError(f"there is a mesh {name!r} already")
        _check_number("num_replicas", num_replicas, 1 << 20)
        _check_number("port", port, 65535)
        template = _template(image_spec, pod_template)
        if template is not None and (label_selector is not None or pod_rank_label != POD_INDEX):
            raise ValueError("label_selector and pod_rank_label are of pods that are there: not with image_spec or "
                             "pod_template")  # fmt: skip
        if template is None and (labels is not None or annotations is not None):
            raise ValueError("labels and annotations are of what is made: only with image_spec or pod_template")
        selector = selector_of(name) if label_selector is None else label_selector
        self._meshes[name] = Mesh(
            name, int(num_replicas), selector, pod_rank_label, int(port), template, dict(labels or {}),
            dict(annotations or {}),
        )  # fmt: skip

    # ---- A life ----

    def _create(self, client_script: str | None) -> None:
        if client_script is not None:
            raise RuntimeError("KubernetesJob cannot run batch-mode scripts")
        if not self._meshes:
            raise RuntimeError("the job has no meshes: call add_mesh() before")
        self._begin()
        if not self._made():
            return
        try:
            with self._cluster() as cluster:
                for mesh in self._made():
                    self._provision(cluster, mesh)
        except BaseException:
            if self._is_mine:
                self._undo()
            self._forget()
            raise
        self._at_exit()

    def _provision(self, cluster: Cluster, mesh: Mesh) -> None:
        apply_id = str(self._apply_id)
        body, was_there = cluster.put_mesh(mesh_body(mesh, apply_id))
        self._is_mine = True
        if was_there:
            logger.warning("there was a MonarchMesh %r in %r, which is this job's from now on", mesh.name,
                           self._namespace)  # fmt: skip
        cluster.create_secret(secret_body(mesh, apply_id, self._token, body["metadata"]["uid"]))

    def _state(self) -> JobState:
        try:
            pods = self._pods(None if self._timeout is None else time.monotonic() + self._timeout, tell)
        except BaseException:
            if self._is_mine:
                tell(f"what was made for {self!r} is deleted, since it has not come to be ready")
                self.kill()
            raise
        tokens = {name: self._token_of(self._meshes[name], found[0]) for name, found in pods.items()}
        self._find_way(pods, tokens)
        attached = self._attached()
        for name, found in pods.items():
            attached.attach(name, [pod.url(self._meshes[name]) for pod in found], tokens[name], str(self._apply_id))
        return JobState({name: attached.hosts[name] for name in pods})

    def can_run(self, spec: JobTrait) -> bool:
        """Whether ``spec`` has the same meshes in the same namespace, and all pods are ready, within 5 s.

        If the API server does not answer, they are held to be there, and the log says so.
        """
        if not isinstance(spec, KubernetesJob):
            return False
        if self._kube.is_lost:
            self._kube = spec._kube
        if (spec._namespace, spec._meshes) != (self._namespace, self._meshes):
            return False
        if self._here is not None and self._here.has_shut_down():
            return False
        try:
            return bool(self._pods(time.monotonic() + _STILL_READY_S, lambda text: None))
        except Unreachable as error:
            logger.warning("%s; the pods of %r are taken to be there", error, self)
            return True
        except TimeoutError:
            return False

    def _specification(self) -> Any:
        return self._namespace, self._meshes

    def _has_ended(self) -> bool:
        return self._here is not None and bool(self._here.has_shut_down())

    def kill(self) -> None:
        """As of every job. ``NotImplementedError`` if it has made no pods: this machine's part of it has ended then."""
        was_active = self.active
        super().kill()
        if was_active and not self._made():
            raise NotImplementedError(
                f"{self!r} has made no pods, so it cannot end them: what has made them does (kubectl delete)"
            )

    def _kill(self) -> None:
        if self._made():
            self._kube.check()
        self._let_go()
        self._delete()
        self._forget()

    def _undo(self) -> None:
        """Of what this process has made: without those who use it."""
        self._let_go()  # what this script has there does not fail
        try:
            self._delete()
        except RuntimeError as error:
            tell(f"what was made for {self!r} cannot be deleted: {error}")
        self._forget()

    def _delete(self) -> None:
        atexit.unregister(self._undo)
        if not (made := self._made()):
            return
        apply_id = str(self._apply_id)
        with self._cluster() as cluster:
            for mesh in made:
                if not cluster.delete_mesh(mesh.name, apply_id):
                    logger.warning("the MonarchMesh %r is another job's by now, and is left to it", mesh.name)
            for mesh in made:
                cluster.delete_secret(secret_name(mesh, apply_id))
        self._is_mine = False

    def _at_exit(self) -> None:
        """What is not saved ends with this script."""
        if not self._outlives:
            atexit.unregister(self._undo)
            atexit.register(self._undo)

    def _note_saved(self) -> None:
        self._outlives = True
        atexit.unregister(self._undo)

    def _forget(self) -> None:
        self._forward().end()
        for name in self._meshes:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._file(f"{name}.token"))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._file("kubeconfig"))
        super()._forget()

    # ---- Parts ----

    def _cluster(self) -> Cluster:
        return Cluster(self._kube, self._namespace)

    def _made(self) -> list[Mesh]:
        """Those that this job has the cluster make."""
        return [mesh for mesh in self._meshes.values() if mesh.template is not None]

    def _secret(self, mesh: Mesh) -> str | None:
        return None if mesh.template is None else secret_name(mesh, str(self._apply_id))

    def _pods(self, until: float | None, say: Any) -> dict[str, list[Pod]]:
        with self._cluster() as cluster:
            return {
                name: wait_for_pods(cluster, mesh, self._secret(mesh), until, say)
                for name, mesh in self._meshes.items()
            }

    def _file(self, what: str) -> str:
        return os.path.join(os.path.dirname(super()._token_file()), f"job-{self._apply_id}.{what}")

    def _token_of(self, mesh: Mesh, pod: Pod) -> str:
        """The file in which this process reads the token of a mesh: of pods that are there, what their Secret says."""
        if mesh.template is not None:
            self._write_token()
            return self._token_file()
        if named := os.environ.get("MONARCH_TOKEN_FILE"):
            return named
        if pod.secret is None:
            raise RuntimeError(
                f"the token of the pod {pod.name} is not known: set MONARCH_TOKEN_FILE to a file that has it, or have "
                "its pods mount a Secret with the key 'token', as the volume 'monarch-token' (docs/concepts/kubernetes)"
            )
        with self._cluster() as cluster:
            token = token_in(cluster.secret(pod.secret) or {})
        if token is None:
            raise RuntimeError(
                f"the Secret {pod.secret!r} of the pod {pod.name} has no token: its key 'token' must hold 32 "
                "hexadecimal digits, as `openssl rand -hex 16` prints them"
            )
        path = self._file(f"{mesh.name}.token")
        self._at_exit()
        _saved.replace(path, bytes.fromhex(token))
        return path

    def _find_way(self, pods: dict[str, list[Pod]], tokens: dict[str, str]) -> None:
        """Where this script is outside: by which worker it reaches all others."""
        from monarch._meshes import attachment

        first = next(iter(pods))
        way = self._attach_to
        if way is None and self._kube.out_of_cluster:
            os.makedirs(os.path.dirname(self._file("")), mode=0o700, exist_ok=True)
            kubectl = [*self._kube.for_kubectl(self._file("kubeconfig")), "--namespace", self._namespace]
            self._at_exit()
            pod = pods[first][0]
            port = self._forward().ensure(kubectl, pod.name, pod.port_of(self._meshes[first]))
            way = f"tcp://127.0.0.1:{port}"
        if way is not None:
            attachment.attach_by(way, tokens[first])

    def _forward(self) -> Forward:
        return Forward(self._file("forward"))


def _check_number(what: str, value: Any, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ValueError(f"{what} must be an int from 1 to {most}, but is {value!r}")


def _template(image_spec: Any, pod_template: Any) -> dict[str, Any] | None:
    """Of a pod; None: neither is given."""
    if image_spec is not None and pod_template is not None:
        raise ValueError("give image_spec or pod_template, not both: the template has its image already")
    if pod_template is not None:
        if not isinstance(pod_template, dict):
            from kubernetes import client

            pod_template = client.ApiClient().sanitize_for_serialization(pod_template)
        return check_template(pod_template)
    if image_spec is None:
        return None
    if not isinstance(image_spec, ImageSpec):
        raise TypeError(f"image_spec must be an ImageSpec, but is {image_spec!r}")
    return template_of(image_spec)

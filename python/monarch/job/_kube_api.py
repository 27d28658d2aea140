"""What jobs ask of an API server, through the official client. It fails with one sentence that says what to do."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from monarch.job._kube_config import KubeConfig
from monarch.job._kube_manifests import APPLY_ID, GROUP, PLURAL, VERSION

_ANSWER_S = 30.0  # for the API server
_GONE = 410  # HTTP
_GONE_S, _LOOK_S = 60.0, 0.5  # for what somebody has deleted


class Unreachable(RuntimeError):
    """The API server does not answer, now."""


class Cluster:
    """One namespace of a cluster. A block ends its connections. Objects are dictionaries, as in manifests."""

    def __init__(self, kube: KubeConfig, namespace: str) -> None:
        from kubernetes import client

        self._namespace = namespace
        self._api = kube.client()
        self._core = client.CoreV1Api(self._api)
        custom = client.CustomObjectsApi(self._api)
        self._meshes = {
            verb: self._bound(getattr(custom, f"{verb}_namespaced_custom_object"))
            for verb in ("get", "create", "patch", "delete")
        }

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self._api.close()

    def _bound(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            return function(GROUP, VERSION, self._namespace, PLURAL, *args, _request_timeout=_ANSWER_S)

        return call

    # ---- Pods ----

    def pods(self, selector: str) -> tuple[list[dict[str, Any]], str]:
        """And the version of the list, from which they can be watched."""
        with self._asking("list", "pods"):
            listed = _answer(self._list(label_selector=selector, _request_timeout=_ANSWER_S))
        return listed.get("items") or [], listed["metadata"].get("resourceVersion", "")

    def changes(self, selector: str, version: str, seconds: int) -> Iterator[tuple[str, dict[str, Any]]]:
        """``ADDED``, ``MODIFIED`` or ``DELETED``, and the pod. Ends in time, or earlier: list them anew then."""
        from kubernetes.watch.watch import iter_resp_lines

        try:
            with self._asking("watch", "pods"):
                response = self._list(
                    watch=True, label_selector=selector, resource_version=version, timeout_seconds=seconds,
                    _request_timeout=seconds + _ANSWER_S,
                )  # fmt: skip
                with contextlib.closing(response):
                    if response.status == _GONE:
                        return
                    _check(response)
                    for event in map(json.loads, filter(None, iter_resp_lines(response))):
                        if event["type"] == "ERROR":  # that version is too old, most of the time
                            return
                        yield event["type"], event["object"]
        except Unreachable:  # a connection that was open for long: whether it is so is seen by the next
            return

    def _list(self, **options: Any) -> Any:
        """A response. The client's own objects are none for pods that a newer cluster describes."""
        return self._core.list_namespaced_pod(self._namespace, _preload_content=False, **options)

    # ---- Meshes ----

    def mesh(self, name: str) -> dict[str, Any] | None:
        return self._or_none(lambda: self._meshes["get"](name), "get", PLURAL)

    def put_mesh(self, body: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """And whether there was one of this name, which is changed."""
        from kubernetes import client

        name, until = body["metadata"]["name"], time.monotonic() + _GONE_S
        while True:
            try:
                with self._asking("create", PLURAL):
                    return self._meshes["create"](body), False
            except RuntimeError as error:
                cause = error.__cause__
                if not isinstance(cause, client.ApiException) or cause.status != 409:
                    raise
            found = self.mesh(name)
            if found is not None and "deletionTimestamp" not in found["metadata"]:
                with self._asking("patch", PLURAL):
                    return self._meshes["patch"](name, body), True
            if time.monotonic() > until:
                raise RuntimeError(f"the MonarchMesh {name!r} was deleted, and is still there after {_GONE_S:.0f} s")
            time.sleep(_LOOK_S)

    def delete_mesh(self, name: str, apply_id: str) -> bool:
        """False: it is another job's by now."""
        found = self.mesh(name)
        if found is None:
            return True
        if (found["metadata"].get("labels") or {}).get(APPLY_ID) != apply_id:
            return False
        self._or_none(lambda: self._meshes["delete"](name), "delete", PLURAL)
        return True

    # ---- Secrets ----

    def secret(self, name: str) -> dict[str, Any] | None:
        def read() -> Any:
            return _answer(
                self._core.read_namespaced_secret(
                    name, self._namespace, _request_timeout=_ANSWER_S, _preload_content=False
                )
            )

        secret: dict[str, Any] | None = self._or_none(read, "get", "secrets")
        return secret

    def create_secret(self, body: Any) -> None:
        with self._asking("create", "secrets"):
            _answer(
                self._core.create_namespaced_secret(
                    self._namespace, body, _request_timeout=_ANSWER_S, _preload_content=False
                )
            )

    def delete_secret(self, name: str) -> None:
        def delete() -> Any:
            return _answer(
                self._core.delete_namespaced_secret(
                    name, self._namespace, _request_timeout=_ANSWER_S, _preload_content=False
                )
            )

        self._or_none(delete, "delete", "secrets")

    # ---- Failures ----

    def _or_none(self, call: Callable[[], Any], verb: str, what: str) -> Any:
        """None: there is none of that name."""
        from kubernetes import client

        try:
            with self._asking(verb, what):
                return call()
        except RuntimeError as error:
            cause = error.__cause__
            if isinstance(cause, client.ApiException) and cause.status == 404 and _names_one(cause):
                return None
            raise

    @contextlib.contextmanager
    def _asking(self, verb: str, what: str) -> Iterator[None]:
        """``RuntimeError`` with what the cluster has against it, as its cause."""
        import urllib3
        from kubernetes import client

        try:
            yield
        except client.ApiException as error:
            raise RuntimeError(_sentence(error, verb, what, self._namespace)) from error
        except urllib3.exceptions.HTTPError as error:
            host = self._api.configuration.host
            raise Unreachable(f"the API server {host} cannot be reached: {_last_line(error)}") from None


def _check(response: Any) -> None:
    """``ApiException`` if it says no: some versions of the client leave that to who reads it."""
    from kubernetes import client

    if not 200 <= response.status <= 299:
        error: Any = client.ApiException(status=response.status, reason=response.reason)
        error.body = response.data if isinstance(response.data, (bytes, str)) else response.read()
        raise error


def _answer(response: Any) -> dict[str, Any]:
    _check(response)
    found: dict[str, Any] = json.loads(response.data)
    return found


def _status(error: Any) -> dict[str, Any]:
    """The ``Status`` of an API server; {}: it has answered with something else."""
    try:
        found = json.loads(error.body)
    except (TypeError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _names_one(error: Any) -> bool:
    """Whether an object is missing, and not its kind."""
    return bool((_status(error).get("details") or {}).get("name"))


def _sentence(error: Any, verb: str, what: str, namespace: str) -> str:
    message = _status(error).get("message") or _last_line(error.body or error.reason)
    if error.status == 0:
        return f"the API server cannot be talked to: {message}"
    if error.status == 401:
        return f"the cluster does not accept these credentials: {message}; log in again, or see to the kubeconfig"
    if error.status == 403:
        return (
            f"this user may not {verb} {what} in the namespace {namespace!r}: {message}; an administrator gives that "
            "right with examples/kubernetes/rbac.yaml"
        )
    if error.status == 404 and "namespaces " in message:
        return f"there is no namespace {namespace!r} in this cluster: {message}"
    if error.status == 404 and what == PLURAL and not _names_one(error):
        return (
            "this cluster does not know MonarchMesh: an administrator installs the operator, or at least "
            "`kubectl apply -f examples/kubernetes/crd.yaml`"
        )
    return f"the cluster will not {verb} {what} in the namespace {namespace!r} (HTTP {error.status}): {message}"


def _last_line(text: Any) -> str:
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    return (str(text).strip().splitlines() or ["no reason given"])[-1]

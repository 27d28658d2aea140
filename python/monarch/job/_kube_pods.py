"""The pods of a mesh, by rank: which are ready, and why the others are not."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from monarch.job._kube_api import Cluster, Unreachable
from monarch.job._kube_manifests import PORT, TOKEN_VOLUME, Mesh

_WATCH_S = 60  # then they are listed anew
_PAUSE_S = 1.0  # at least, between two lists
_AWAY_S = 120.0  # that an API server may be while somebody waits
_FOR_EVER_S = 1e9


class Pod(NamedTuple):
    name: str
    rank: int
    ip: str
    is_ready: bool
    why_not: str
    secret: str | None  # with its token
    port: int | None  # as its environment says

    def url(self, mesh: Mesh) -> str:
        """Where its worker is reached: at the port that the script has named, or else the pod, or the usual one."""
        host = f"[{self.ip}]" if ":" in self.ip else self.ip
        return f"tcp://{host}:{self.port_of(mesh)}"

    def port_of(self, mesh: Mesh) -> int:
        return mesh.port if mesh.port != PORT else self.port or PORT


def read_pod(pod: dict[str, Any], rank_label: str) -> Pod:
    """``RuntimeError`` if its label tells no rank."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    label = (metadata.get("labels") or {}).get(rank_label, "")
    if not label.isdecimal():
        raise RuntimeError(
            f"the pod {metadata['name']} has no number in its label {rank_label!r} ({label!r}), so its rank is not "
            "known: name the label that has it, add_mesh(..., pod_rank_label=...), or let a StatefulSet (Kubernetes "
            "1.28 or later) make the pods"
        )
    conditions = {each["type"]: each for each in status.get("conditions") or []}
    is_leaving = metadata.get("deletionTimestamp") is not None
    is_ready = conditions.get("Ready", {}).get("status") == "True" and bool(status.get("podIP")) and not is_leaving
    why_not = "it is being deleted" if is_leaving else _reason(status, conditions)
    spec = pod.get("spec") or {}
    volumes = spec.get("volumes") or []
    secrets = [each.get("secret", {}).get("secretName") for each in volumes if each["name"] == TOKEN_VOLUME]
    ip = status.get("podIP") or ""
    port = _named_port(spec.get("containers") or [])
    return Pod(metadata["name"], int(label), ip, is_ready, why_not, secrets[0] if secrets else None, port)


def _named_port(containers: list[dict[str, Any]]) -> int | None:
    for container in containers:
        for variable in container.get("env") or []:
            if variable["name"] == "MONARCH_PORT" and (variable.get("value") or "").isdecimal():
                return int(variable["value"])
    return None


def _reason(status: dict[str, Any], conditions: dict[str, Any]) -> str:
    said = [status.get("phase", "Pending")]
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        said += [scheduled.get("reason"), scheduled.get("message")]
    for each in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        state = each.get("state") or {}
        for found in (state.get("waiting"), state.get("terminated")):
            said += [found.get("reason"), found.get("message")] if found else []
    if status.get("phase") == "Running" and len(said) == 1:
        said.append("not ready yet")
    return ": ".join(" ".join(text.split()) for text in dict.fromkeys(said) if text)


class Pods:
    """Of one mesh, as last heard of. ``secret``: only those with this one count; None: all."""

    def __init__(self, mesh: Mesh, secret: str | None) -> None:
        self._mesh, self._secret = mesh, secret
        self._found: dict[str, Pod] = {}

    def reset(self, pods: list[dict[str, Any]]) -> None:
        self._found = {}
        for pod in pods:
            self.note("ADDED", pod)

    def note(self, change: str, pod: dict[str, Any]) -> None:
        self._found.pop(pod["metadata"]["name"], None)
        if change != "DELETED":
            found = read_pod(pod, self._mesh.rank_label)
            if self._secret is None or found.secret == self._secret:
                self._found[found.name] = found

    def by_rank(self) -> list[Pod | None]:
        """One that is ready before one that is not."""
        ranks: list[Pod | None] = [None] * self._mesh.count
        for pod in sorted(self._found.values(), key=lambda pod: pod.is_ready):
            if pod.rank < len(ranks):
                ranks[pod.rank] = pod
        return ranks

    def ready(self) -> list[Pod] | None:
        """All of them, in the order of their ranks."""
        found = [pod for pod in self.by_rank() if pod is not None and pod.is_ready]
        return found if len(found) == self._mesh.count else None

    def missing(self) -> str:
        """Which, and why; ranks with the same reason together."""
        ranks: dict[str, list[int]] = {}
        for rank, pod in enumerate(self.by_rank()):
            if pod is None:
                ranks.setdefault("no pod yet", []).append(rank)
            elif not pod.is_ready:
                ranks.setdefault(f"{pod.name}: {pod.why_not}", []).append(rank)
        return "; ".join(f"rank {', '.join(map(str, which))}: {why}" for why, which in ranks.items())


def tell(text: str) -> None:
    print(f"monarch: {text}", file=sys.stderr, flush=True)


def wait_for_pods(
    cluster: Cluster, mesh: Mesh, secret: str | None, until: float | None, say: Callable[[str], None] = tell
) -> list[Pod]:
    """All pods of a mesh, by rank, once all are ready. ``TimeoutError`` says which are not, and why.

    Args:
        cluster: where they are.
        mesh: whose they are.
        secret: as in ``Pods``.
        until: ``time.monotonic()``; None: for as long as it takes.
        say: is given what is waited for, each time that it changes.
    """
    pods, told, begun = Pods(mesh, secret), "", time.monotonic()
    while True:
        listed, version = _listed(cluster, mesh, until, say)
        pods.reset(listed)
        round_begun = time.monotonic()
        left = (until if until is not None else round_begun + _FOR_EVER_S) - round_begun
        seconds = max(1, min(_WATCH_S, math.ceil(left)))
        changes = cluster.changes(mesh.selector, version, seconds) if left > 0 else iter(())
        while (ready := pods.ready()) is None:
            if (missing := pods.missing()) != told:
                say(f"waiting for pods of {mesh.name!r}: {missing}")
                told = missing
            if (change := next(changes, None)) is None:
                break
            pods.note(*change)
        if ready is not None:
            return ready
        if until is not None and time.monotonic() >= until:
            raise TimeoutError(
                f"not all {mesh.count} pods of the mesh {mesh.name!r} are ready after "
                f"{time.monotonic() - begun:.0f} s: {pods.missing()}"
            )
        time.sleep(max(0.0, min(round_begun + _PAUSE_S, until or math.inf) - time.monotonic()))


def _listed(
    cluster: Cluster, mesh: Mesh, until: float | None, say: Callable[[str], None]
) -> tuple[list[dict[str, Any]], str]:
    """While the API server is away for a moment, what is waited for is not given up."""
    give_up = min(time.monotonic() + _AWAY_S, until or math.inf)
    while True:
        try:
            return cluster.pods(mesh.selector)
        except Unreachable as error:
            if time.monotonic() + _PAUSE_S > give_up:
                raise
            say(f"{error}; trying again")
        time.sleep(_PAUSE_S)

"""What is asked of a cluster, as dictionaries: meshes of pods, and the Secrets that hold their token."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from typing import Any

GROUP, VERSION, PLURAL, KIND = "monarch.pytorch.org", "v1alpha1", "monarchmeshes", "MonarchMesh"
APPLY_ID = f"{GROUP}/apply-id"  # a label of what a job has made
PORT = 26600
POD_INDEX = "apps.kubernetes.io/pod-index"
TOKEN_VOLUME = "monarch-token"  # of a pod: the Secret of that volume holds its token
_TOKEN_FOLDER = "/var/run/monarch"
_NAME_MAX = 63

# A mounted Secret is a link in a folder of root's, which `--token-file` refuses. So it comes over stdin.
_WORKER = (
    'case "$POD_IP" in *:*) at="[$POD_IP]"; on="[::]";; *) at="$POD_IP"; on="*";; esac; '
    'exec python -m monarch worker --bind "tcp://$at:$MONARCH_PORT@tcp://$on:$MONARCH_PORT" '
    f"--token-stdin < {_TOKEN_FOLDER}/token"
)
# For another command, a file that is its user's alone.
_WITH_TOKEN = (
    f'umask 077; d=$(mktemp -d) && cp {_TOKEN_FOLDER}/token.bin "$d/token" && export MONARCH_TOKEN_FILE="$d/token" '
    '&& exec "$@"'
)


@dataclass
class ImageSpec:
    """A container image that has Python and this package, and what its pods may use.

    ``resources``: requests and limits, such as ``{"cpu": 4, "memory": "16Gi", "nvidia.com/gpu": 8}``. ``enable_fuse``:
    the container is privileged, as FUSE wants it. ``shared_memory_size``: of ``/dev/shm``, such as ``"8Gi"``.
    """

    image: str
    resources: dict[str, str | int] | None = None
    enable_fuse: bool = False
    shared_memory_size: str | None = None


@dataclass
class Mesh:
    """As ``add_mesh`` has been told."""

    name: str
    count: int
    selector: str
    rank_label: str
    port: int
    template: dict[str, Any] | None  # None: its pods are there
    labels: dict[str, str]
    annotations: dict[str, str]


def check_name(name: Any) -> None:
    """That it can be a label, a part of a host's name and an attribute. ``ValueError`` says what is wrong."""
    if not isinstance(name, str) or not name:
        raise ValueError(f"the name of a mesh must be a str that is not empty, but is {name!r}")
    if len(name) > _NAME_MAX:
        raise ValueError(f"the name of a mesh has at most {_NAME_MAX} characters, but {name!r} has {len(name)}")
    if not re.fullmatch("[a-z0-9]+", name):
        raise ValueError(f"the name of a mesh has lower-case letters and digits only, but is {name!r}")
    if not name[0].isalpha():
        raise ValueError(f"the name of a mesh starts with a letter, but is {name!r}")


def selector_of(name: str) -> str:
    """Of the pods that the operator makes for a mesh."""
    return f"app.kubernetes.io/name=monarch-worker,{GROUP}/mesh-name={name}"


def template_of(spec: ImageSpec) -> dict[str, Any]:
    """The pods of an image: one container, which runs ``monarch worker``."""
    container: dict[str, Any] = {"name": "worker", "image": spec.image}
    pod: dict[str, Any] = {"containers": [container]}
    if spec.resources:
        wanted = {name: str(value) for name, value in spec.resources.items()}
        container["resources"] = {"requests": wanted, "limits": dict(wanted)}
    if spec.enable_fuse:
        container["securityContext"] = {"privileged": True}
    if spec.shared_memory_size is not None:
        container["volumeMounts"] = [{"name": "shm", "mountPath": "/dev/shm"}]
        memory = {"medium": "Memory", "sizeLimit": spec.shared_memory_size}
        pod["volumes"] = [{"name": "shm", "emptyDir": memory}]
    return {"spec": pod}


def check_template(template: Any) -> dict[str, Any]:
    """A pod template, or what is its ``spec``, with a container. ``ValueError`` says what is missing."""
    spec = template.get("spec", template) if isinstance(template, dict) else None
    containers = spec.get("containers") if isinstance(spec, dict) else None
    if not isinstance(containers, list) or not containers:
        raise ValueError(
            "pod_template must be a pod template with spec.containers, as a dict or of the kubernetes client, but is "
            f"{template!r}"
        )
    if containers[0].get("args") and not containers[0].get("command"):
        raise ValueError(
            "the first container of pod_template has args, but no command: give both, since the token is handed to "
            "the command; or neither, and it runs `monarch worker`"
        )
    return dict(template)


def mesh_body(mesh: Mesh, apply_id: str) -> dict[str, Any]:
    """The custom resource of which the operator makes a StatefulSet and a Service."""
    assert mesh.template is not None
    return {
        "apiVersion": f"{GROUP}/{VERSION}", "kind": KIND,
        "metadata": {
            "name": mesh.name, "labels": {**mesh.labels, APPLY_ID: apply_id}, "annotations": mesh.annotations,
        },
        "spec": {
            "replicas": mesh.count, "port": mesh.port,
            "podTemplate": _with_worker(mesh.template, mesh.port, secret_name(mesh, apply_id)),
        },
    }  # fmt: skip


def _with_worker(template: dict[str, Any], port: int, secret: str) -> dict[str, Any]:
    """With the token, the port, and a command for the first container, if it has none."""
    pod = dict(template.get("spec", template))
    first = dict(pod["containers"][0])
    own = first.get("command")
    first["command"] = ["sh", "-c", _WITH_TOKEN, "sh", *own] if own else ["sh", "-c", _WORKER]
    given = [each for each in first.get("env", []) if each["name"] not in ("MONARCH_PORT", "POD_IP")]
    pod_ip = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    first["env"] = [*given, {"name": "MONARCH_PORT", "value": str(port)}, pod_ip]
    # Until it has succeeded once the pod is not Ready. Not for ever: each is a connection that the worker refuses.
    first.setdefault("startupProbe", {"tcpSocket": {"port": port}, "periodSeconds": 1, "failureThreshold": 600})
    mount = {"name": TOKEN_VOLUME, "mountPath": _TOKEN_FOLDER, "readOnly": True}
    first["volumeMounts"] = [*first.get("volumeMounts", []), mount]
    pod["containers"] = [first, *pod["containers"][1:]]
    volume = {"name": TOKEN_VOLUME, "secret": {"secretName": secret, "defaultMode": 0o400}}
    pod["volumes"] = [*pod.get("volumes", []), volume]
    return {**template, "spec": pod} if "spec" in template else pod


def secret_name(mesh: Mesh, apply_id: str) -> str:
    """New with each apply, so that pods of an earlier one can be told by it."""
    return f"{mesh.name}-token-{apply_id[:8]}"


def secret_body(mesh: Mesh, apply_id: str, token: str, owner_uid: str) -> dict[str, Any]:
    """It goes with its mesh, by its owner reference.

    Args:
        mesh: whose token it is.
        apply_id: of the job.
        token: hexadecimal.
        owner_uid: of the custom resource.
    """
    owner = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "name": mesh.name, "uid": owner_uid}
    keys = {"token": token.encode() + b"\n", "token.bin": bytes.fromhex(token)}
    return {
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "immutable": True,
        "metadata": {
            "name": secret_name(mesh, apply_id), "labels": {APPLY_ID: apply_id}, "ownerReferences": [owner],
        },
        "data": {name: base64.b64encode(value).decode() for name, value in keys.items()},
    }  # fmt: skip


def token_in(secret: dict[str, Any]) -> str | None:
    """Hexadecimal; None: there is none in this Secret."""
    try:
        token = base64.b64decode(secret["data"]["token"]).decode().strip()
        return token if len(bytes.fromhex(token)) == 16 else None
    except (KeyError, TypeError, ValueError):
        return None

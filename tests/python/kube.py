"""A stand-in for a Kubernetes cluster: an API server over TLS, and an operator whose pods are processes here."""

import base64
import calendar
import contextlib
import json
import os
import random
import ssl
import subprocess
import sys
import threading
import time
import urllib.parse
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from kube_schema import check
from kube_streams import Forwards, Wire, accept, execute
from script_run import MARK, marked

ROOT = Path(__file__).parents[2]
MESHES, GROUP = "monarchmeshes", "monarch.pytorch.org"
RBAC, CRDS = "rbac.authorization.k8s.io/v1", "customresourcedefinitions"
KINDS = {
    "pods": ("Pod", "v1"), "secrets": ("Secret", "v1"), "events": ("Event", "v1"),
    "serviceaccounts": ("ServiceAccount", "v1"), "roles": ("Role", RBAC), "rolebindings": ("RoleBinding", RBAC),
    CRDS: ("CustomResourceDefinition", "apiextensions.k8s.io/v1"), MESHES: ("MonarchMesh", f"{GROUP}/v1alpha1"),
}  # fmt: skip
MODELS = {kind: f"V1{name}" for kind, (name, _) in KINDS.items() if kind not in ("events", MESHES)} | {
    "events": "CoreV1Event"
}
MERGES = ("application/merge-patch+json", "application/strategic-merge-patch+json")  # lists are replaced by either
APPLY = "application/apply-patch+yaml"
VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}
REASONS = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "AlreadyExists"}
NAMESPACE, BEARER, ADMIN, LIMIT = "monarch", "bearer-of-a-test", "bearer-of-an-administrator", 30


def make_certificates(folder):
    """A CA, and a key and a certificate for 127.0.0.1."""

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(*new, "-x509", "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=ca", "-days", "2",
            "-addext", "keyUsage=critical,keyCertSign")  # fmt: skip
    openssl(*new, "-keyout", "key", "-out", "csr", "-subj", "/CN=api")
    (folder / "extensions").write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
    openssl("x509", "-req", "-in", "csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-out", "crt",
            "-days", "2", "-extfile", "extensions")  # fmt: skip


def rules_of(file):
    """{(verb, resource)} of a manifest of roles."""
    import yaml

    return {right for each in yaml.safe_load_all(file.read_text()) for right in rights_of(each)}


def rights_of(role):
    return {(verb, what) for rule in role.get("rules", []) for verb in rule["verbs"] for what in rule["resources"]}


def cluster(folder, monkeypatch):
    """For a fixture: of it, and of its pods, nothing is left."""
    mark = "kube-" + os.urandom(6).hex()
    monkeypatch.setenv(MARK, mark)
    (folder / "kube").mkdir()
    with contextlib.closing(Kube(folder / "kube")) as made:
        yield made
    assert set(marked(mark)) <= {os.getpid()}


class Refusal(Exception):
    def __init__(self, status, message="", details=None, plain=False):
        self.status, self.message, self.details, self.plain = status, message, details, plain


class Kube:
    """One namespace. It allows what examples/kubernetes/rbac.yaml does, and an administrator everything.

    ``hold``: rank -> what a pod waits for.
    """

    def __init__(self, folder):
        self.folder = Path(folder)
        make_certificates(self.folder)
        self.changed = threading.Condition(threading.RLock())
        self.objects = {kind: {} for kind in KINDS}
        self.events, self.version, self.asked = [], 0, []
        self.allowed = rules_of(ROOT / "examples/kubernetes/rbac.yaml")
        self.hold, self.has_crd, self.is_closed, self.oldest = {}, True, False, 0
        self.net = f"127.{random.randrange(1, 255)}.{random.randrange(256)}"
        self.processes, self.logs, self.environments, self.wires = {}, {}, {}, {}
        self.forwards = {}
        self.port = random.randrange(20000, 30000)
        (self.folder / "bin").mkdir()
        program(self.folder / "bin/python", f'exec {sys.executable} "$@"')
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(self))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "crt", self.folder / "key")
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"https://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()
        self.write_configs()

    def write_configs(self):
        self.kubeconfig, self.administrator = self.folder / "kubeconfig", self.folder / "administrator"
        for file, token in ((self.kubeconfig, BEARER), (self.administrator, ADMIN)):
            cluster = {"server": self.url, "certificate-authority": str(self.folder / "ca.crt")}
            config = {
                "apiVersion": "v1", "kind": "Config", "current-context": "c",
                "clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "c", "user": {"token": token}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c", "namespace": NAMESPACE}}],
            }  # fmt: skip
            file.write_text(json.dumps(config))
        account = self.folder / "account"
        account.mkdir()
        (account / "token").write_text(BEARER)
        (account / "ca.crt").write_bytes((self.folder / "ca.crt").read_bytes())
        host, port = self.url.removeprefix("https://").split(":")
        self.env = {
            "KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port, "SERVICE_ACCOUNT": str(account),
        }  # fmt: skip

    def close(self):
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()
            self.break_connections()
            assert self.changed.wait_for(lambda: not self.wires, LIMIT)
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
        with self.changed:
            for name in list(self.objects["pods"]):
                self.remove("pods", name)

    def break_connections(self, pod=None):
        """Those that commands and port-forwards go over, of one pod or of all."""
        with self.changed:
            for wire, name in self.wires.items():
                if pod in (None, name):
                    wire.close()

    # ---- Objects ----

    def put(self, kind, body, change="ADDED"):
        with self.changed:
            self.version += 1
            metadata = body["metadata"]
            metadata.setdefault("uid", str(uuid.uuid4()))
            metadata.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
            metadata |= {"resourceVersion": str(self.version)} | ({} if kind == CRDS else {"namespace": NAMESPACE})
            body.setdefault("kind", KINDS[kind][0])
            body.setdefault("apiVersion", KINDS[kind][1])
            check_object(kind, body)
            self.objects[kind][metadata["name"]] = body
            self.events.append((self.version, kind, change, json.loads(json.dumps(body))))
            self.has_crd |= kind == CRDS and metadata["name"] == f"{MESHES}.{GROUP}"
            self.allowed |= rights_of(body) if kind == "roles" else set()
            self.changed.notify_all()
        return body

    def remove(self, kind, name):
        with self.changed:
            body = self.objects[kind].pop(name)
            self.version += 1
            self.events.append((self.version, kind, "DELETED", body))
            if kind == "pods" and (process := self.processes.pop(name, None)) is not None:
                self.break_connections(name)
                process.terminate()
                process.wait(timeout=LIMIT)
                self.logs.pop(name).join()
            for other in ("pods", "secrets"):
                for owned in [n for n, o in self.objects[other].items() if is_owned(o, body["metadata"]["uid"])]:
                    self.remove(other, owned)
            self.changed.notify_all()
        return body

    def names(self, kind):
        with self.changed:
            return sorted(self.objects[kind])

    def wait(self, condition):
        with self.changed:
            assert self.changed.wait_for(lambda: condition(self), LIMIT), self.objects

    # ---- The operator, and the nodes ----

    def reconcile(self):
        with self.changed:
            for name, mesh in list(self.objects[MESHES].items()):
                for rank in range(mesh["spec"]["replicas"]):
                    self.reconcile_pod(f"{name}-{rank}", rank, mesh)
            for name, pod in list(self.objects["pods"].items()):
                if name not in self.processes:
                    self.start(name, pod)

    def reconcile_pod(self, name, rank, mesh):
        template = mesh["spec"]["podTemplate"]
        old = self.objects["pods"].get(name)
        if old is not None:
            if old["spec"] == template["spec"]:
                return
            self.remove("pods", name)
        labels = {
            "app.kubernetes.io/name": "monarch-worker", f"{GROUP}/mesh-name": mesh["metadata"]["name"],
            "apps.kubernetes.io/pod-index": str(rank),
        }  # fmt: skip
        self.put_pod(name, rank, template["spec"], labels, mesh["metadata"]["uid"])

    def put_pod(self, name, rank, spec, labels, owner=None):
        owners = [{"apiVersion": "v1", "kind": "Owner", "name": "o", "uid": owner}] if owner else []
        number = len(self.processes) + len(self.objects["pods"]) + 2
        status = {"phase": "Pending", "podIP": f"{self.net}.{number}", "conditions": []}
        metadata = {"name": name, "labels": labels, "ownerReferences": owners}
        self.put("pods", {"metadata": metadata, "spec": spec, "status": status})

    def start(self, name, pod):
        """As a node does it, if nothing holds it up."""
        rank = int(name.rsplit("-")[-1])
        secrets = [volume["secret"]["secretName"] for volume in pod["spec"]["volumes"] if "secret" in volume]
        if rank in self.hold:
            state = {"name": "worker", "image": "i", "imageID": "", "ready": False, "restartCount": 0,
                     "state": {"waiting": self.hold[rank]}}  # fmt: skip
            if pod["status"].get("containerStatuses") != [state]:
                self.set_status(name, containerStatuses=[state])
            return
        if any(secret not in self.objects["secrets"] for secret in secrets):
            return
        place = self.folder / f"{name}-{os.urandom(3).hex()}"
        (place / "tmp").mkdir(parents=True)
        for secret in secrets:
            mount_secret(place / "secret", self.objects["secrets"][secret])
        container, ip = pod["spec"]["containers"][0], pod["status"]["podIP"]
        given = {each["name"]: each["value"] for each in container["env"] if "value" in each}
        here = {"/var/run/monarch/": f"{place}/secret/", 'on="*"': f'on="{ip}"'}  # a pod has a network of its own
        command = [replaced(word, here) for word in container["command"]]
        kept = {name: os.environ[name] for name in ("PYTHONPATH", MARK) if name in os.environ}
        env = {**kept, **given, "POD_IP": ip, "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
               "TMPDIR": f"{place}/tmp", "XDG_RUNTIME_DIR": f"{place}/tmp"}  # fmt: skip
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, env=env, text=True, start_new_session=True, **pipes)
        self.processes[name], self.logs[name], self.environments[name] = process, Log(), env
        self.logs[name].follow(process.stderr, lambda: None)
        self.logs[name].follow(process.stdout, lambda: self.set_ready(name, process, True))
        threading.Thread(target=self.serve, args=(name, process), daemon=True).start()

    def serve(self, name, process):
        """It is ready when it says where it listens, and until it ends."""
        process.wait()
        self.set_ready(name, process, False)

    def set_ready(self, name, process, is_ready):
        with self.changed:
            if self.processes.get(name) is process:
                condition = {"type": "Ready", "status": "True" if is_ready else "False"}
                phase = "Running" if is_ready or process.poll() is None else "Failed"
                self.set_status(name, phase=phase, containerStatuses=[], conditions=[condition])

    def set_status(self, name, **fields):
        pod = self.objects["pods"][name]
        self.put("pods", {**pod, "metadata": dict(pod["metadata"]), "status": {**pod["status"], **fields}}, "MODIFIED")

    def let_go(self):
        """Of what was held up."""
        with self.changed:
            self.hold.clear()
            self.reconcile()


class Log:
    """What a pod says, from its beginning."""

    def __init__(self):
        self.lines, self.grows, self.threads, self.open = [], threading.Condition(), [], 0

    def follow(self, pipe, at_first):
        self.open += 1
        self.threads.append(threading.Thread(target=self.read, args=(pipe, at_first), daemon=True))
        self.threads[-1].start()

    def read(self, pipe, at_first):
        with pipe:
            for line in pipe:
                with self.grows:
                    self.lines.append(line)
                    self.grows.notify_all()
                at_first()
                at_first = int
        with self.grows:
            self.open -= 1
            self.grows.notify_all()

    def after(self, count):
        """The lines from there on, once there are any; none: it has ended."""
        with self.grows:
            self.grows.wait_for(lambda: len(self.lines) > count or not self.open)
            return self.lines[count:]

    def join(self):
        for thread in self.threads:
            thread.join(LIMIT)


def check_object(kind, body):
    """As a server does that refuses what its schema does not know."""
    try:
        if kind in MODELS:
            check(body, MODELS[kind])
        else:
            check(body["metadata"], "V1ObjectMeta")
            check(body["spec"].get("podTemplate"), "V1PodTemplateSpec")
    except ValueError as error:
        raise Refusal(400, f"{kind} is not as the schema says: {error}") from error


def is_owned(body, uid):
    return any(owner["uid"] == uid for owner in body["metadata"].get("ownerReferences") or [])


def replaced(text, table):
    for old, new in table.items():
        text = text.replace(old, new)
    return text


def program(path, line):
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def mount_secret(folder, secret):
    """As a node mounts it: links, in a folder that anybody may write."""
    (folder / "..data").mkdir(parents=True)
    for key, value in secret["data"].items():
        file = folder / "..data" / key
        file.write_bytes(base64.b64decode(value))
        file.chmod(0o400)
        (folder / key).symlink_to(f"..data/{key}")
    folder.chmod(0o1777)


def merged(old, new):
    """A merge patch."""
    if not isinstance(new, dict) or not isinstance(old, dict):
        return new
    made = {**old, **{key: merged(old.get(key), value) for key, value in new.items()}}
    return {key: value for key, value in made.items() if value is not None}


def selects(selector, body):
    labels = body["metadata"].get("labels") or {}
    return all(labels.get(part.partition("=")[0]) == part.partition("=")[2] for part in selector.split(",") if part)


def names_it(field, body):
    """A selector of fields, of which names are known."""
    what, _, name = field.partition("=")
    return what != "metadata.name" or body["metadata"]["name"] == name


# ---- What kubectl prints ----


def age(body):
    made = calendar.timegm(time.strptime(body["metadata"]["creationTimestamp"], "%Y-%m-%dT%H:%M:%SZ"))
    return f"{int(time.time() - made) // 86400}d"


def cells_of(kind, body):
    """Column -> what stands there."""
    if kind == "pods":
        is_ready = {"type": "Ready", "status": "True"} in body["status"]["conditions"]
        more = {"Ready": f"{int(is_ready)}/1", "Status": body["status"]["phase"], "Restarts": 0}
    else:
        more = {"Replicas": body["spec"]["replicas"]} if kind == MESHES else {}
    return {"Name": body["metadata"]["name"], **more, "Age": age(body)}


def table(kind, bodies):
    rows = [cells_of(kind, body) for body in bodies]
    columns = [{"name": name, "type": "string", "format": "", "priority": 0} for name in (rows or [{"Name": 0}])[0]]
    told = [{"cells": [*row.values()], "object": body} for row, body in zip(rows, bodies, strict=True)]
    return {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {}, "columnDefinitions": columns, "rows": told}


def resources_of(version):
    """Of a group, as it tells them itself."""
    found = [(plural, kind) for plural, (kind, of) in KINDS.items() if of == version]
    verbs = ["create", "delete", "get", "list", "patch", "watch"]
    return [{"name": plural, "singularName": kind.lower(), "namespaced": plural != CRDS, "kind": kind, "verbs": verbs}
            for plural, kind in found]  # fmt: skip


def handler_of(kube):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def answer(self):
            url = urllib.parse.urlparse(self.path)
            self.queries = urllib.parse.parse_qs(url.query)
            self.query = {name: values[-1] for name, values in self.queries.items()}
            length = int(self.headers.get("Content-Length") or 0)
            self.body = self.read_body(self.rfile.read(length)) if length else None
            try:
                self.bearer = self.headers.get("Authorization", "").partition(" ")[2]
                if self.bearer not in (BEARER, ADMIN):
                    raise Refusal(401, "Unauthorized")
                self.route(url.path.strip("/").split("/"))
            except Refusal as refusal:
                self.refuse(refusal)
            except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
                self.close_connection = True

        do_GET = do_POST = do_PATCH = do_DELETE = answer

        def read_body(self, data):
            if self.headers["Content-Type"] != APPLY:
                return json.loads(data)
            import yaml

            return yaml.safe_load(data)

        def refuse(self, refusal):
            status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                      "reason": REASONS.get(refusal.status, ""), "message": refusal.message, "code": refusal.status,
                      "details": refusal.details or {}}  # fmt: skip
            check(status, "V1Status")
            self.send(b"404 page not found\n" if refusal.plain else json.dumps(status).encode(), refusal.status)

        def send(self, data, status=200):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def route(self, parts):
            if parts[0] == "apis" and GROUP in parts and not kube.has_crd:
                raise Refusal(404, plain=True)
            after = parts[parts.index("namespaces") + 1 :] if "namespaces" in parts else [NAMESPACE, *parts[3:]]
            namespace, kind, name, part = (*after, None, None, None)[:4]
            if kind is None:
                return self.discover("/".join(parts))
            verb, what = VERBS[self.command], f"{kind}/{part}" if part else kind
            if verb == "get" and name is None:
                verb = "watch" if self.query.get("watch") in ("true", "True", "1") else "list"
            kube.asked.append((verb, what))
            if (verb, what) not in kube.allowed and self.bearer != ADMIN:
                raise Refusal(403, f'{what} is forbidden: User "u" cannot {verb} resource "{what}"', {"kind": kind})
            if namespace != NAMESPACE:
                raise Refusal(404, f'namespaces "{namespace}" not found', {"name": namespace, "kind": "namespaces"})
            if kind not in KINDS:
                raise Refusal(404, plain=True)
            if verb == "watch":
                return self.watch(kind)
            if part:
                return self.route_part(name, part)
            with kube.changed:
                self.send(json.dumps(getattr(self, verb)(kind, name)).encode(), 201 if verb == "create" else 200)

        def route_part(self, name, part):
            self.found("pods", name)
            if part == "log" and name in kube.logs:
                return self.send_log(kube.logs[name])
            if part in ("exec", "portforward") and name in kube.processes:
                return self.open_streams(name, part)
            raise Refusal(400, f"{part} of the pod {name}: it does not run")

        def send_log(self, log):
            with log.grows:
                count = len(log.lines)
                lines = log.lines[max(0, count - int(self.query.get("tailLines", count))) :]
            self.begin("text/plain")
            while lines:
                self.chunk("".join(lines).encode())
                lines = log.after(count) if self.query.get("follow") == "true" else []
                count += len(lines)
            self.chunk(b"")

        def open_streams(self, name, part):
            way = accept(self, part)
            if way is None:
                raise Refusal(400, f"{part} takes an upgrade to SPDY or to a WebSocket")
            self.close_connection = True
            wire = Wire(self.connection)
            with kube.changed:
                kube.wires[wire] = name
            try:
                if part == "exec":
                    execute(way, wire, self.queries, kube.environments[name])
                else:
                    kube.forwards[wire] = Forwards(name, kube.objects["pods"][name]["status"]["podIP"])
                    kube.forwards[wire].serve(way, wire)
            finally:
                with kube.changed:
                    del kube.wires[wire]
                    kube.forwards.pop(wire, None)
                    kube.changed.notify_all()

        def discover(self, path):
            """As far as kubectl looks."""
            groups = {version.partition("/")[0]: version for kind, (_, version) in KINDS.items()
                      if "/" in version and (kind != MESHES or kube.has_crd)}  # fmt: skip
            versions = {group: {"groupVersion": of, "version": of.partition("/")[2]} for group, of in groups.items()}
            listed = [{"name": group, "versions": [of], "preferredVersion": of} for group, of in versions.items()]
            known = {
                "version": {"major": "1", "minor": "32", "gitVersion": "v1.32.0"},
                "api": {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []},
                "apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed},
            }
            for prefix, version in (("api", "v1"), *(("apis", of) for of in groups.values())):
                known[f"{prefix}/{version}"] = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version,
                                                "resources": resources_of(version)}  # fmt: skip
            if path not in known:
                raise Refusal(404, plain=True)
            self.send(json.dumps(known[path]).encode())

        def found(self, kind, name):
            if name not in kube.objects[kind]:
                raise Refusal(404, f'{kind} "{name}" not found', {"name": name, "kind": kind})
            return kube.objects[kind][name]

        def wants_table(self):
            return "as=Table" in self.headers.get("Accept", "")

        def selects(self, body):
            labels, fields = self.query.get("labelSelector", ""), self.query.get("fieldSelector", "")
            return selects(labels, body) and names_it(fields, body)

        def get(self, kind, name):
            return table(kind, [self.found(kind, name)]) if self.wants_table() else self.found(kind, name)

        def list(self, kind, _):
            items = [each for each in kube.objects[kind].values() if self.selects(each)]
            if self.wants_table():
                return table(kind, items)
            version = {"resourceVersion": str(kube.version)}
            name, group = KINDS[kind]
            return {"kind": f"{name}List", "apiVersion": group, "metadata": version, "items": items}

        def create(self, kind, _):
            name = self.body["metadata"]["name"]
            if name in kube.objects[kind]:
                raise Refusal(409, f'{kind} "{name}" already exists', {"name": name, "kind": kind})
            made = kube.put(kind, self.body)
            kube.reconcile()
            return made

        def patch(self, kind, name):
            how, is_there = self.headers["Content-Type"], name in kube.objects[kind]
            if how not in (*MERGES, APPLY):
                raise Refusal(415, f"no patch of {how}")
            old = {} if how == APPLY and not is_there else self.found(kind, name)
            made = kube.put(kind, merged(old, self.body), "MODIFIED" if is_there else "ADDED")
            kube.reconcile()
            return made

        def delete(self, kind, name):
            self.found(kind, name)
            return {**kube.remove(kind, name), "kind": KINDS[kind][0]}

        def watch(self, kind):
            after = int(self.query.get("resourceVersion") or 0)
            if after < kube.oldest:
                gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
                return self.send(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
            until = time.monotonic() + float(self.query.get("timeoutSeconds", 60))
            self.begin("application/json")
            while True:
                with kube.changed:

                    def news(after=after):
                        return [each for each in kube.events if each[0] > after] or kube.is_closed

                    kube.changed.wait_for(news, max(0.0, until - time.monotonic()))
                    found = [] if kube.is_closed else news()
                for version, of_kind, change, body in found or []:
                    after = version
                    if of_kind == kind and self.selects(body):
                        self.chunk(json.dumps({"type": change, "object": body}).encode() + b"\n")
                if kube.is_closed or time.monotonic() >= until:
                    return self.chunk(b"")

        def begin(self, kind):
            """An answer in chunks."""
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()

        def chunk(self, data):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()

    return Handler

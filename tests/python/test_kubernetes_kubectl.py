"""kubectl itself, over the stand-in for a cluster of kube.py: what administrators do, and what jobs use."""

import fcntl
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import termios
import threading
import time

import pytest

if reason := "" if shutil.which("kubectl") else "no kubectl (Debian: kubernetes-client)":
    pytest.skip(reason, allow_module_level=True)
if reason := "" if shutil.which("openssl") else "no openssl, which makes the certificates of the API server":
    pytest.skip(reason, allow_module_level=True)
pytest.importorskip("kubernetes", reason="no kubernetes client: tools/bootstrap test")

from kube import ADMIN, BEARER, GROUP, MESHES, ROOT, cluster, make_certificates
from script_run import Run, ended, program

from monarch.job.kubernetes import ImageSpec, KubeConfig, KubernetesJob

LIMIT = 60


@pytest.fixture
def kube(tmp_path, monkeypatch):
    yield from cluster(tmp_path, monkeypatch)


def command(kube, *arguments, user="administrator"):
    return ["kubectl", "--kubeconfig", kube.folder / user, "--cache-dir", kube.folder / "cache", *arguments]


def environment(kube, **more):
    """In which kubectl keeps what it writes, and whatever a test starts, to the test's folder."""
    return {**os.environ, "HOME": str(kube.folder), **more}


def ask(kube, *arguments, user="administrator", **more):
    """What kubectl answers with when it ends.

    Over WebSockets kubectl 1.32 reads before it has made its streams, and throws away what comes then. In a cluster no
    container starts as fast. It says so; it is asked again.
    """
    for _ in range(5):
        done = subprocess.run(
            command(kube, *arguments, user=user), env=environment(kube, **more), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=LIMIT,
        )  # fmt: skip
        if not re.search(r"Unknown stream id \d+, discarding message", done.stderr):
            break
    return done


def told(kube, *arguments, **more):
    done = ask(kube, *arguments, **more)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@pytest.fixture
def pods(kube):
    """Two of them, which run."""
    job = KubernetesJob("monarch", kubeconfig=KubeConfig.from_path(kube.kubeconfig))
    job.add_mesh("workers", 2, image_spec=ImageSpec("i"), port=kube.port)
    job.apply()
    kube.wait(
        lambda kube: all(kube.objects["pods"][f"workers-{rank}"]["status"]["phase"] == "Running" for rank in (0, 1))
    )
    yield kube
    job.kill()


def test_get_and_describe_tell_of_pods_and_meshes(pods):
    found = json.loads(told(pods, "get", "pods", "-o", "json"))
    assert [pod["metadata"]["name"] for pod in found["items"]] == ["workers-0", "workers-1"]
    head, *lines = map(str.split, told(pods, "get", "pods").splitlines())
    assert head == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert [line[:4] for line in lines] == [[f"workers-{rank}", "1/1", "Running", "0"] for rank in (0, 1)]
    described = told(pods, "describe", "pods")
    for rank in (0, 1):
        assert pods.objects["pods"][f"workers-{rank}"]["status"]["podIP"] in described
    assert "monarch-token" in described
    head, line = map(str.split, told(pods, "get", "monarchmeshes").splitlines())
    assert head == ["NAME", "REPLICAS", "AGE"] and line[:2] == ["workers", "2"]


def test_logs_are_what_a_pod_has_said(pods):
    (line,) = told(pods, "logs", "workers-1").splitlines()
    ip = pods.objects["pods"]["workers-1"]["status"]["podIP"]
    assert ip in line
    with pods.logs["workers-1"].grows:
        pods.logs["workers-1"].lines += ["second\n", "third\n"]
    assert told(pods, "logs", "workers-1", "--tail", "2") == "second\nthird\n"


def test_logs_that_are_followed_go_on_until_the_pod_ends(pods):
    with subprocess.Popen(
        command(pods, "logs", "workers-0", "-f"), env=environment(pods), stdout=subprocess.PIPE, text=True
    ) as follower:
        assert pods.objects["pods"]["workers-0"]["status"]["podIP"] in follower.stdout.readline()
        log = pods.logs["workers-0"]
        with log.grows:
            log.lines.append("more\n")
            log.grows.notify_all()
        assert follower.stdout.readline() == "more\n"
        assert told(pods, "delete", "monarchmesh", "workers")
        assert follower.communicate(timeout=LIMIT)[0] == "" and follower.returncode == 0


def test_delete_ends_a_mesh_with_its_pods_and_its_secret(pods):
    assert told(pods, "delete", "monarchmesh", "workers") == f'monarchmesh.{GROUP} "workers" deleted\n'
    assert not any(pods.names(kind) for kind in (MESHES, "secrets", "pods"))
    done = ask(pods, "delete", "monarchmesh", "workers")
    assert done.returncode == 1 and '"workers" not found' in done.stderr


def test_who_may_not_is_told_so_by_kubectl(pods):
    done = ask(pods, "logs", "workers-0", user="kubeconfig")
    assert done.returncode == 1 and 'cannot get resource "pods/log"' in done.stderr
    done = ask(pods, "exec", "workers-0", "--", "true", user="kubeconfig")
    assert done.returncode == 1 and 'cannot create resource "pods/exec"' in done.stderr


def test_kubectl_goes_by_the_ca_and_the_token_of_its_configuration(kube):
    good = kube.administrator.read_text()
    kube.administrator.write_text(good.replace(ADMIN, "another"))
    done = ask(kube, "get", "pods")
    assert done.returncode == 1 and ("Unauthorized" in done.stderr or "logged in" in done.stderr)
    kube.administrator.write_text(good.replace(str(kube.folder / "ca.crt"), str(kube.folder / "other/ca.crt")))
    (kube.folder / "other").mkdir()
    make_certificates(kube.folder / "other")
    done = ask(kube, "get", "pods")
    assert done.returncode == 1 and "x509" in done.stderr
    assert kube.asked == []


# ---- What an administrator applies ----

MANIFESTS = [f"-f={ROOT}/examples/kubernetes/{file}" for file in ("crd.yaml", "rbac.yaml")]
# The one flag that it takes: kubectl checks manifests with the server's schema, of which the stand-in has none.
UNCHECKED = "--validate=false"


@pytest.mark.parametrize("side", ["client", "server"])
def test_the_manifests_of_the_examples_are_all_that_a_job_needs(kube, side):
    kube.has_crd = False
    kube.allowed.clear()
    apply = ["apply", UNCHECKED, *(["--server-side"] if side == "server" else []), *MANIFESTS]
    lines = told(kube, *apply).splitlines()
    word = "created" if side == "client" else "serverside-applied"
    assert [line.partition(" ")[::2] for line in lines] == [(name, word) for name in (
        f"customresourcedefinition.apiextensions.k8s.io/{MESHES}.{GROUP}", "serviceaccount/monarch-client",
        "role.rbac.authorization.k8s.io/monarch-client", "rolebinding.rbac.authorization.k8s.io/monarch-client",
        "role.rbac.authorization.k8s.io/monarch-outside",
    )]  # fmt: skip
    job = KubernetesJob("monarch", kubeconfig=KubeConfig.from_path(kube.kubeconfig))
    job.add_mesh("workers", 1, image_spec=ImageSpec("i"), port=kube.port)
    job.apply()
    assert told(kube, "get", "monarchmeshes", "-o", "name") == f"monarchmesh.{GROUP}/workers\n"
    job.kill()


def test_what_is_applied_again_is_changed_where_it_differs(kube, tmp_path):
    told(kube, "apply", UNCHECKED, *MANIFESTS)
    assert {line.split()[1] for line in told(kube, "apply", UNCHECKED, *MANIFESTS).splitlines()} == {"unchanged"}
    changed = (ROOT / "examples/kubernetes/rbac.yaml").read_text().replace("[pods/portforward]", "[pods/exec]")
    (tmp_path / "rbac.yaml").write_text(changed)
    lines = told(kube, "apply", UNCHECKED, f"-f={tmp_path}/rbac.yaml").splitlines()
    assert [line.split()[1] for line in lines] == ["unchanged", "unchanged", "unchanged", "configured"]
    assert kube.objects["roles"]["monarch-outside"]["rules"][0]["resources"] == ["pods/exec"]


# ---- Ports and commands ----


def version():
    said = subprocess.run(
        ["kubectl", "version", "--client", "-o", "json"], capture_output=True, text=True, timeout=LIMIT
    )
    return int(json.loads(said.stdout)["clientVersion"]["minor"].rstrip("+"))


@pytest.fixture(params=["spdy", "websocket"])
def way(request, monkeypatch):
    """The right that each way takes; newer versions of kubectl know both."""
    if request.param == "websocket" and version() < 30:
        pytest.skip("this kubectl goes by SPDY only: before 1.30")
    for what in ("PORT_FORWARD", "REMOTE_COMMAND"):
        monkeypatch.setenv(f"KUBECTL_{what}_WEBSOCKETS", str(request.param == "websocket").lower())
    return {"spdy": "create", "websocket": "get"}[request.param]


class Forward:
    """kubectl port-forward."""

    def __init__(self, kube, *arguments):
        line = command(kube, "port-forward", *arguments, user="kubeconfig")
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(line, env=environment(kube), text=True, **pipes)
        self.port = int(re.match(r"Forwarding from 127\.0\.0\.1:(\d+) -> \d+\n", self.process.stdout.readline())[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.communicate(timeout=LIMIT)

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), LIMIT)


def test_port_forward_carries_connections_side_by_side_until_their_ends(pods, way):
    ip = pods.objects["pods"]["workers-0"]["status"]["podIP"]
    pods.allowed.add((way, "pods/portforward"))
    with socket.create_server((ip, 0)) as server:
        server.settimeout(LIMIT)
        at = server.getsockname()[1]
        with Forward(pods, "--address", "127.0.0.1", "pod/workers-0", f":{at}") as forward:
            pairs = []
            for _ in range(2):
                near = forward.connect()
                far = server.accept()[0]
                far.settimeout(LIMIT)
                pairs.append((near, far))
            big = os.urandom(1 << 20)
            for near, far in pairs:
                near.sendall(b"up")
                assert far.recv(2) == b"up"
                sending = threading.Thread(target=far.sendall, args=(big,))
                sending.start()
                assert near.makefile("rb").read(len(big)) == big
                sending.join(LIMIT)
                near.shutdown(socket.SHUT_WR)
                assert far.recv(1) == b""
                far.close()
                assert near.recv(1) == b""
                near.close()
    assert (way, "pods/portforward") in pods.asked


def test_port_forward_to_a_port_where_nobody_listens_says_so(pods, way):
    pods.allowed.add((way, "pods/portforward"))
    ip = pods.objects["pods"]["workers-0"]["status"]["podIP"]
    with socket.create_server((ip, 0)) as server:
        at = server.getsockname()[1]
    with Forward(pods, "pod/workers-0", f":{at}") as forward:
        with forward.connect() as near:
            assert near.recv(1) == b""
        said = forward.process.stderr.readline()
    assert re.search(rf"an error occurred forwarding \d+ -> {at}: error forwarding port {at} to pod workers-0", said)


def test_exec_runs_a_command_in_the_environment_of_the_pod(pods, way):
    ip = pods.objects["pods"]["workers-1"]["status"]["podIP"]
    assert told(pods, "exec", "workers-1", "--", "sh", "-c", "echo $POD_IP") == f"{ip}\n"
    done = ask(pods, "exec", "workers-1", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout) == (7, "out\n")
    assert done.stderr == "err\ncommand terminated with exit code 7\n"
    assert (way, "pods/exec") in pods.asked


def test_exec_hands_on_its_stdin_to_its_end(pods, way):
    big = "0123456789abcde\n" * 10_000
    line = command(pods, "exec", "-i", "workers-0", "--", "cat")
    done = subprocess.run(line, env=environment(pods), input=big, capture_output=True, text=True, timeout=LIMIT)
    assert (done.returncode, done.stdout, done.stderr) == (0, big, "")


def test_exec_of_what_is_no_program_says_so(pods, way):
    done = ask(pods, "exec", "workers-0", "--", "/nothing")
    assert done.returncode == 1 and 'exec: "/nothing": No such file or directory' in done.stderr


def test_exec_on_a_terminal_has_its_size(pods, way):
    near, far = os.openpty()
    with open(near, "r+b", buffering=0) as screen:
        fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 99, 0, 0))
        line = command(pods, "exec", "-it", "workers-0", "--", "sh", "-c", "read line; stty size")
        with subprocess.Popen(line, env=environment(pods), stdin=far, stdout=far, stderr=far) as process:
            os.close(far)
            said = b""
            screen.write(b"\n")
            while b"33 99" not in said:
                said += screen.read(1 << 16)
            assert process.wait(LIMIT) == 0


def test_a_command_ends_with_the_connection_that_it_came_by(pods, way):
    line = command(pods, "exec", "-i", "workers-0", "--", "sh", "-c", "read line; echo $$; exec sleep 1000")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(line, env=environment(pods), text=True, **pipes) as process:
        process.stdin.write("\n")  # kubectl hands it on when it has made its streams
        process.stdin.flush()
        pid = int(process.stdout.readline())
        process.kill()
        assert ended(pid, time.monotonic() + LIMIT)


def test_exec_of_the_official_client_goes_by_a_websocket(pods):
    from kubernetes import client, config
    from kubernetes.stream import stream

    with config.new_client_from_config(str(pods.administrator)) as api:
        words = ["sh", "-c", "echo $POD_IP; read line; echo $line >&2; exit 3"]
        pipes = {"stdin": True, "stdout": True, "stderr": True, "tty": False, "_preload_content": False}
        function = client.CoreV1Api(api).connect_get_namespaced_pod_exec
        shell = stream(function, "workers-0", "monarch", command=words, **pipes)
        shell.write_stdin("line\n")
        shell.run_forever(LIMIT)
        said = (shell.read_stdout(), shell.read_stderr(), shell.returncode)
    assert said == (f"{addresses(pods)[0]}\n", "line\n", 3)


# ---- A job, from outside of the cluster ----

JOB = (
    program("kubernetes/job.py")
    + """
job = KubernetesJob("monarch", kubeconfig=KubeConfig.from_path(os.environ["CONFIG"]), timeout=30)
job.add_mesh("workers", 2, image_spec=IMAGE, port=port)
hosts = job.state(path).workers
from monarch._meshes import attachment
worker = hosts.spawn_procs().spawn("worker", Worker)
print("ips", *worker.variable.call("POD_IP").get().values())
print("way", attachment._way.url)
"""
)


def script(kube, text, path="-", job=JOB):
    env = environment(kube, **kube.env, CONFIG=str(kube.kubeconfig), WORKER_PORT=str(kube.port))
    return Run(job + text, args=(str(path),), env={**env, "XDG_RUNTIME_DIR": str(kube.folder)})


def addresses(kube):
    return [kube.objects["pods"][f"workers-{rank}"]["status"]["podIP"] for rank in (0, 1)]


@pytest.mark.feature(91, "attach and provision, by a stand-in for the API")
def test_a_job_from_outside_goes_by_kubectl_s_port_forward(kube):
    run = script(kube, "sys.stdin.readline()\njob.kill()\n")
    assert run.line("ips ", LIMIT).split() == addresses(kube)
    assert run.line("way ").startswith("tcp://127.0.0.1:")
    with kube.changed:
        assert [*kube.wires.values()] == ["workers-0"]
    # The manifest gives no right that WebSockets take: newer versions of kubectl ask, and go on by SPDY.
    assert [each for each in kube.asked if each[1] == "pods/portforward"][-1] == ("create", "pods/portforward")
    run.tell("\n")
    assert run.done(LIMIT).status == 0, run.err
    assert not any(kube.names(kind) for kind in (MESHES, "secrets", "pods"))
    kube.wait(lambda kube: not kube.wires)


def test_a_connection_through_the_port_forward_that_breaks_is_made_anew(kube):
    run = script(kube, """
for line in sys.stdin:
    print("again", *worker.variable.call("POD_IP").get().values())
""")  # fmt: skip
    assert run.line("ips ", LIMIT).split() == addresses(kube)
    with kube.changed:
        (forwards,) = kube.forwards.values()
    assert forwards.sockets
    forwards.break_connections()
    run.tell("\n")
    assert run.line("again ", LIMIT).split() == addresses(kube)
    with kube.changed:
        assert [*kube.forwards.values()] == [forwards], "kubectl has ended"
    run.process.stdin.close()
    assert run.done(LIMIT).status == 0, run.err


def test_when_kubectl_loses_the_cluster_a_script_is_told_and_the_next_goes_on_with_the_pods(kube, tmp_path):
    path = tmp_path / "job"
    run = script(kube, """
sys.stdin.readline()
try:
    print(worker.variable.call("POD_IP").get())
except Exception as error:
    print("failed", type(error).__name__, " ".join(str(error).split()))
""", path)  # fmt: skip
    assert run.line("ips ", LIMIT).split() == addresses(kube)
    way, mesh = run.line("way "), kube.objects[MESHES]["workers"]["metadata"]["uid"]
    kube.break_connections()
    kube.wait(lambda kube: not kube.wires)
    run.tell("\n")
    said = run.line("failed ", LIMIT)
    assert said.startswith("SupervisionError") and f"by way of {way}" in said
    assert run.done(LIMIT).status == 0, run.err
    run = script(kube, "job.kill()\n", path)
    assert run.line("ips ", LIMIT).split() == addresses(kube)
    assert (run.line("way "), kube.objects[MESHES]["workers"]["metadata"]["uid"]) == (way, mesh)
    assert run.done(LIMIT).status == 0, run.err
    assert not any(kube.names(kind) for kind in (MESHES, "secrets", "pods"))


def test_a_configuration_from_memory_is_one_that_kubectl_reads(kube):
    memory = f"""
def memory():
    from kubernetes import client
    config = client.Configuration(host={kube.url!r})
    config.ssl_ca_cert = {str(kube.folder / "ca.crt")!r}
    config.api_key = {{"authorization": "Bearer " + {BEARER!r}}}
    return KubeConfig.from_config(config)
"""
    run = script(
        kube, "job.kill()\n", job=memory + JOB.replace('KubeConfig.from_path(os.environ["CONFIG"])', "memory()")
    )
    assert run.line("ips ", LIMIT).split() == addresses(kube)
    assert run.done(LIMIT).status == 0, run.err
    assert ("create", "pods/portforward") in kube.asked


def test_without_the_right_to_forward_ports_a_script_is_told_so(kube):
    kube.allowed.remove(("create", "pods/portforward"))
    run = script(kube, "").done(LIMIT)
    said = run.err.splitlines()[-1]
    assert said.startswith("RuntimeError: kubectl port-forward has ended: error: ") and "forbidden" in said
    assert run.status == 1
    assert not any(kube.names(kind) for kind in (MESHES, "secrets", "pods"))

"""monarch.job.kubernetes, over the stand-in for a cluster of kube.py, through the official client."""

import base64
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from script_run import PROGRAMS, Run, ended, program

if reason := "" if shutil.which("openssl") else "no openssl, which makes the certificates of the API server":
    pytest.skip(reason, allow_module_level=True)
pytest.importorskip("kubernetes", reason="no kubernetes client: tools/bootstrap test")

from kube import BEARER, GROUP, MESHES, NAMESPACE, ROOT, cluster, rules_of
from kube import program as write_program

from monarch.job import _kube_api, _kube_manifests, _kube_pods, job_loads
from monarch.job.kubernetes import ImageSpec, KubeConfig, KubernetesJob

BEGIN = program("kubernetes/job.py")
PROVISION = """
job = KubernetesJob("monarch", timeout=30)
job.add_mesh("workers", 2, image_spec=IMAGE, port=port)
"""


@pytest.fixture
def kube(tmp_path, monkeypatch):
    yield from cluster(tmp_path, monkeypatch)


def script(kube, text, path="-", begin=BEGIN, **env):
    return Run(begin + text, args=(str(path),), env={**kube.env, "WORKER_PORT": str(kube.port), **env})


def outside(kube, namespace=NAMESPACE, **kwargs):
    return KubernetesJob(namespace, kubeconfig=KubeConfig.from_path(kube.kubeconfig), **kwargs)


def nothing_left(kube):
    return not any(kube.names(kind) for kind in (MESHES, "secrets", "pods"))


# ---- Pods that the job has made ----


@pytest.mark.feature(91, "attach and provision, by a stand-in for the API")
def test_a_mesh_is_made_attached_to_and_deleted(kube):
    run = script(kube, """
job = KubernetesJob("monarch")
queue = {"kueue.x-k8s.io/queue-name": "q"}
job.add_mesh("workers", 2, image_spec=IMAGE, port=port, labels=queue, annotations={"a": "b"})
job.add_mesh("one", 1, image_spec=IMAGE, port=port)
state = job.state(None)
print("ips", *ips(state.workers), *ips(state.one))
sys.stdin.readline()
job.kill()
assert not job.active
""")  # fmt: skip
    found = run.line("ips ").split()
    with kube.changed:
        assert found == [kube.objects["pods"][name]["status"]["podIP"] for name in ("workers-0", "workers-1", "one-0")]
        mesh = kube.objects[MESHES]["workers"]
        assert mesh["apiVersion"] == "monarch.pytorch.org/v1alpha1" and mesh["kind"] == "MonarchMesh"
        assert mesh["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "q"
        assert mesh["metadata"]["annotations"] == {"a": "b"}
        assert (mesh["spec"]["replicas"], mesh["spec"]["port"]) == (2, kube.port)
        assert len(kube.objects["secrets"]) == 2
        for secret in kube.objects["secrets"].values():
            (owner,) = secret["metadata"]["ownerReferences"]
            assert owner["uid"] == kube.objects[MESHES][owner["name"]]["metadata"]["uid"]
        (volume,) = mesh["spec"]["podTemplate"]["spec"]["volumes"]
        assert volume["secret"]["defaultMode"] == 0o400
        token = base64.b64decode(kube.objects["secrets"][volume["secret"]["secretName"]]["data"]["token"])
    told = [*map(str, Path("/proc").glob("[0-9]*/cmdline"))]
    assert not any(token.strip() in read_or_empty(path) for path in told), "the token stands in a command line"
    run.tell("\n")
    run.done()
    assert run.status == 0, run.err
    assert nothing_left(kube)
    assert ("delete", "secrets") in kube.asked
    assert all(line.startswith("monarch: waiting for pods of '") for line in run.err.splitlines())


def read_or_empty(path):
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def test_what_no_script_has_saved_ends_with_it(kube):
    assert script(kube, PROVISION + "print(*ips(job.state(None).workers))").done().status == 0
    assert nothing_left(kube)


def test_the_next_run_finds_its_pods_and_one_that_wants_others_replaces_them(kube, tmp_path):
    path = tmp_path / "job"
    uids = []
    keeps = "print('first', job.apply_id)"
    for text, count in ((PROVISION, 2), (PROVISION, 2), (PROVISION.replace("2,", "1,"), 1)):
        run = script(
            kube,
            text + "state = job.state(path)\nprint(*ips(state.workers))\n" + keeps,
            path,
            XDG_RUNTIME_DIR=str(kube.folder),
        ).done()
        assert run.status == 0, run.err
        assert len(run.out.splitlines()[0].split()) == count
        uids.append(kube.objects[MESHES]["workers"]["metadata"]["uid"])
    assert uids[0] == uids[1] != uids[2]
    assert path.stat().st_mode & 0o777 == 0o600
    run = script(kube, "job_load(path).kill()", path, XDG_RUNTIME_DIR=str(kube.folder)).done()
    assert (run.status, run.err) == (0, "")
    assert nothing_left(kube) and not path.exists()


def test_a_saved_job_is_kept_while_the_api_server_is_away(kube, tmp_path):
    path = tmp_path / "job"
    text = PROVISION + "print(*ips(job.state(path).workers))"
    assert script(kube, text, path, XDG_RUNTIME_DIR=str(kube.folder)).done().status == 0
    saved = path.read_bytes()
    away = {"KUBERNETES_SERVICE_PORT": "1", "XDG_RUNTIME_DIR": str(kube.folder)}
    run = script(kube, text, path, **away)
    assert "are taken to be there\n" in run.err_line(30.0, "; trying again\n")
    run.kill()
    run.done()
    assert path.read_bytes() == saved
    run = script(kube, text + "\njob.kill()", path, XDG_RUNTIME_DIR=str(kube.folder)).done()
    assert (run.status, run.err) == (0, "") and nothing_left(kube)


def test_pods_that_have_ended_are_made_anew(kube, tmp_path):
    path = tmp_path / "job"
    text = PROVISION + "print(*ips(job.state(path).workers))"
    assert script(kube, text, path, XDG_RUNTIME_DIR=str(kube.folder)).done().status == 0
    kube.processes["workers-1"].kill()
    kube.wait(lambda kube: kube.objects["pods"]["workers-1"]["status"]["phase"] == "Failed")
    uid = kube.objects[MESHES]["workers"]["metadata"]["uid"]
    run = script(kube, text + "\njob.kill()", path, XDG_RUNTIME_DIR=str(kube.folder)).done()
    assert run.status == 0 and len(run.out.split()) == 2, run.err
    assert nothing_left(kube) and uid not in run.out


def test_another_command_of_a_pod_template_finds_the_token(kube):
    run = script(kube, """
from kubernetes import client
loop = (
    "import os; from monarch.actor import run_worker_loop_forever; at = os.environ['POD_IP']; "
    "print('begins', flush=True); run_worker_loop_forever(address=f\\"tcp://{at}:{os.environ['MONARCH_PORT']}\\")"
)
container = client.V1Container(name="own", image="i", command=["python", "-c", loop])
template = client.V1PodTemplateSpec(spec=client.V1PodSpec(containers=[container]))
job = KubernetesJob("monarch")
job.add_mesh("workers", 1, pod_template=template, port=port)
print(*ips(job.state(None).workers))
job.kill()
""").done()  # fmt: skip
    assert run.status == 0 and run.out.startswith("127."), run.err
    assert nothing_left(kube)


# ---- Waiting ----


def test_it_says_what_pods_wait_for_and_goes_on_when_they_are_ready(kube):
    kube.hold[1] = {"reason": "ImagePullBackOff", "message": "Back-off pulling image registry/monarch:1"}
    run = script(kube, PROVISION + "print(*ips(job.state(None).workers))\njob.kill()")
    said = "rank 1: workers-1: Pending: ImagePullBackOff: Back-off pulling image registry/monarch:1\n"
    assert said in run.err_line(30, said)
    kube.let_go()
    run.done()
    assert run.status == 0 and len(run.out.split()) == 2, run.err


def test_ctrl_c_deletes_what_was_made_and_says_so(kube, tmp_path):
    kube.hold[0] = {"reason": "ContainerCreating"}
    path = tmp_path / "job"
    run = script(kube, PROVISION + "job.state(path)", path)
    assert "ContainerCreating" in run.err_line(30, "rank 0: workers-0: Pending: ContainerCreating")
    run.interrupt()
    run.done()
    assert "what was made for KubernetesJob('monarch': workers=2) is deleted" in run.err
    assert run.status == -signal.SIGINT and nothing_left(kube) and not path.exists()


def test_another_script_that_waits_deletes_nothing_at_ctrl_c(kube, tmp_path):
    path = tmp_path / "job"
    keep = {"XDG_RUNTIME_DIR": str(kube.folder)}
    assert script(kube, PROVISION + "job.state(path)", path, **keep).done().status == 0
    kube.hold[0] = {"reason": "Evicted"}
    with kube.changed:
        kube.remove("pods", "workers-0")
        kube.reconcile()
    run = script(kube, "job_load(path)._running._state()", path, **keep)
    run.err_line(30, "Evicted")
    run.interrupt()
    assert "is deleted" not in run.done().err and kube.names(MESHES) == ["workers"]


def test_a_timeout_says_which_pods_and_deletes_them(kube):
    kube.hold[0] = {"reason": "ErrImagePull"}
    run = script(kube, PROVISION.replace("timeout=30", "timeout=1") + """
try:
    job.state(None)
except TimeoutError as error:
    print(error)
assert not job.active
""").done()  # fmt: skip
    assert re.match("not all 2 pods of the mesh 'workers' are ready after [123] s: rank 0: .*ErrImagePull", run.out)
    assert run.status == 0 and nothing_left(kube)


def test_a_watch_that_is_too_old_begins_anew(kube):
    kube.hold[0] = {"reason": "ContainerCreating"}
    kube.oldest = 1 << 30
    run = script(kube, PROVISION + "print(*ips(job.state(None).workers))\njob.kill()")
    run.err_line(30, "ContainerCreating")
    kube.let_go()
    assert run.done().status == 0, run.err


# ---- Pods that are there ----


def place_pods(kube, token="a1" * 16, numbers="01", labels=None):
    """Workers that somebody else has started: rank 0 is the pod that was made last."""
    secret = {"metadata": {"name": "theirs"}, "data": {"token": base64.b64encode(token.encode() + b"\n").decode()}}
    kube.put("secrets", secret)
    command = ['exec python -m monarch worker --bind "tcp://$POD_IP:$MONARCH_PORT" --token-stdin '
               "< /var/run/monarch/token"]  # fmt: skip
    container = {
        "name": "theirs",
        "env": [{"name": "MONARCH_PORT", "value": str(kube.port)}],
        "command": ["sh", "-c", *command],
    }
    spec = {"containers": [container], "volumes": [{"name": "monarch-token", "secret": {"secretName": "theirs"}}]}
    for rank in reversed(numbers):
        kube.put_pod(f"their-{rank}", int(rank), spec, {"app": "theirs", "place": rank} if labels is None else labels)
    kube.reconcile()


ATTACH = """
job = KubernetesJob("monarch", timeout=20)
job.add_mesh("workers", 2, label_selector="app=theirs", pod_rank_label="place", port=port)
"""


def test_pods_that_are_there_are_attached_to_by_rank_with_the_token_of_their_secret(kube):
    place_pods(kube)
    run = script(kube, ATTACH + """
print(*ips(job.state(None).workers))
try:
    job.kill()
except NotImplementedError as error:
    print(error)
assert not job.active
""").done()  # fmt: skip
    assert run.status == 0, run.err
    found, said = run.out.splitlines()
    assert found.split() == [kube.objects["pods"][f"their-{rank}"]["status"]["podIP"] for rank in (0, 1)]
    assert "has made no pods, so it cannot end them" in said
    assert kube.names("pods") == ["their-0", "their-1"] and kube.names("secrets") == ["theirs"]


def test_monarch_token_file_goes_before_a_secret(kube, tmp_path):
    place_pods(kube)
    os.chmod(tmp_path, 0o700)
    (tmp_path / "token").write_bytes(bytes.fromhex("a1" * 16))
    (tmp_path / "token").chmod(0o600)
    attach = ATTACH.replace(", port=port", "")  # their environment has it
    run = script(kube, attach + "print(*ips(job.state(None).workers))", MONARCH_TOKEN_FILE=str(tmp_path / "token"))
    assert run.done().status == 0, run.err
    assert ("get", "secrets") not in kube.asked


@pytest.mark.parametrize(
    ("labels", "token", "error"),
    [({"app": "theirs"}, "a1" * 16, "has no number in its label 'place'"), (None, "secret", "has no token")],
)
def test_pods_that_cannot_be_attached_to_say_why(kube, labels, token, error):
    if token == "secret":
        place_pods(kube)
        kube.put("secrets", {"metadata": {"name": "theirs"}, "data": {"other": ""}})
    else:
        place_pods(kube, token, labels=labels)
    run = script(kube, ATTACH + "job.state(None)").done()
    assert run.status == 1 and error in run.err.splitlines()[-1]


# ---- From outside of the cluster ----

OUTSIDE = """
job = KubernetesJob("monarch", kubeconfig=KubeConfig.from_path(os.environ["CONFIG"]), timeout=30)
job.add_mesh("workers", 2, image_spec=IMAGE, port=port)
def forwards():
    import glob, json
    (record,) = glob.glob(os.environ["XDG_RUNTIME_DIR"] + "/monarch/job-*.forward")
    return json.load(open(record))
"""


def kubectl(kube):
    write_program(kube.folder / "bin/kubectl", f'exec {sys.executable} {PROGRAMS}/kubernetes/kubectl.py "$@"')
    return {"PATH": f"{kube.folder}/bin:{os.environ['PATH']}", "CONFIG": str(kube.kubeconfig)}


def test_scripts_outside_share_one_port_forward_until_kill(kube, tmp_path):
    env = {
        **os.environ,
        **kube.env,
        **kubectl(kube),
        "XDG_RUNTIME_DIR": str(kube.folder),
        "WORKER_PORT": str(kube.port),
    }

    def words(text):
        command = [sys.executable, "-c", BEGIN + text, str(tmp_path / "job")]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    use = OUTSIDE + "print(*ips(job.state(path).workers))\nfound = forwards()\nprint(found['pid'], found['port'])\n"

    def look():
        pid, port = words(use)[2:]
        return int(pid), int(port)

    def end(pid):
        os.kill(pid, signal.SIGKILL)
        assert ended(pid, time.monotonic() + 5)

    first, port = look()
    assert look() == (first, port)
    end(first)  # the next takes the same port
    second, same = look()
    assert second != first and same == port
    end(second)
    with socket.create_server(("127.0.0.1", port)):  # which somebody else has by now
        third, another = look()
    assert another != port
    words("job_load(path).kill()")
    assert nothing_left(kube) and ended(third, time.monotonic())
    assert not (kube.folder / "monarch").exists()


def test_a_configuration_from_memory_is_forwarded_by_and_not_saved(kube, tmp_path):
    run = script(kube, OUTSIDE.replace('KubeConfig.from_path(os.environ["CONFIG"])', "memory()") + """
found = ips(job.state(path).workers)
try:
    job_load(path).kill()
except RuntimeError as error:
    print(error)
assert BEARER not in open(path).read()
job.kill()
""", tmp_path / "job", begin=BEGIN + f"""
BEARER = {BEARER!r}
def memory():
    from kubernetes import client
    config = client.Configuration(host={kube.url!r})
    config.ssl_ca_cert = {str(kube.folder / 'ca.crt')!r}
    config.api_key = {{"authorization": "Bearer " + BEARER}}
    return KubeConfig.from_config(config)
""", **kubectl(kube)).done()  # fmt: skip
    assert run.status == 0, run.err
    assert run.out.startswith("a kubeconfig from memory is not saved with a job")
    assert nothing_left(kube)


def test_without_kubectl_it_says_what_to_install_or_to_say(kube):
    run = script(kube, OUTSIDE + "job.state(None)", **{**kubectl(kube), "PATH": ""}).done()
    assert run.err.splitlines()[-1].startswith("RuntimeError: kubectl is not on PATH")


def test_a_kubectl_that_ends_is_told_of(kube):
    env = kubectl(kube)
    write_program(kube.folder / "bin/kubectl", "echo error: pods is forbidden >&2; exit 1")
    run = script(kube, OUTSIDE + "job.state(None)", **env).done()
    assert "RuntimeError: kubectl port-forward has ended: error: pods is forbidden" in run.err
    assert nothing_left(kube)


def test_a_worker_that_is_named_is_the_way_in(kube):
    place_pods(kube)
    ip = kube.objects["pods"]["their-1"]["status"]["podIP"]
    run = script(kube, ATTACH.replace('"monarch", ', f'"monarch", attach_to="tcp://{ip}:{kube.port}", ') + """
print(*ips(job.state(None).workers))
from monarch._meshes import attachment
print(attachment._way.url)
""").done()  # fmt: skip
    assert run.status == 0 and run.out.splitlines()[1] == f"tcp://{ip}:{kube.port}", run.err


# ---- What the cluster, or this machine, has against it ----


def refused(kube, call=None, **kwargs):
    job = outside(kube, **kwargs)
    job.add_mesh("workers", 1, image_spec=ImageSpec("i"), port=kube.port)
    with pytest.raises(RuntimeError) as info:
        (call or job.apply)()
    assert "\n" not in str(info.value) and not job.active
    return str(info.value)


def test_without_the_right_it_names_the_manifest_that_gives_it(kube):
    kube.allowed -= {("create", MESHES)}
    assert re.search("may not create monarchmeshes in the namespace 'monarch': .*rbac.yaml", refused(kube))


def test_what_was_made_before_a_refusal_is_deleted(kube):
    kube.allowed -= {("create", "secrets")}
    assert "may not create secrets" in refused(kube)
    assert nothing_left(kube)


def test_a_cluster_without_the_definition_is_told_of(kube):
    kube.has_crd = False
    assert re.search("does not know MonarchMesh: .*crd.yaml", refused(kube))


def test_a_namespace_that_is_missing_is_told_of(kube):
    assert refused(kube, namespace="other").startswith("there is no namespace 'other' in this cluster")


def test_credentials_that_are_refused_are_told_of(kube):
    kube.kubeconfig.write_text(kube.kubeconfig.read_text().replace(BEARER, "another"))
    assert refused(kube).startswith("the cluster does not accept these credentials")


def test_a_server_that_is_not_there_is_told_of(kube, tmp_path):
    kube.kubeconfig.write_text(kube.kubeconfig.read_text().replace(kube.url, "https://127.0.0.1:1"))
    assert refused(kube).startswith("the API server https://127.0.0.1:1 cannot be reached")


def test_a_server_with_another_certificate_is_not_talked_to(kube):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "/dev/null",
                    "-subj", "/CN=x", "-out", kube.folder / "ca.crt"], check=True, capture_output=True)  # fmt: skip
    assert "certificate" in refused(kube).lower() and kube.asked == []


def test_a_kubeconfig_that_is_none_is_told_of(kube):
    kube.kubeconfig.write_text("nonsense")
    assert re.match(".*/kubeconfig cannot be used as a kubeconfig", refused(kube))


def test_in_no_cluster_it_says_how_to_name_one(monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    job = KubernetesJob("monarch")
    job.add_mesh("workers", 1)
    with pytest.raises(RuntimeError, match="this script runs in no pod of a cluster .*KubeConfig.from_path") as info:
        job.state(None)
    assert info.value.__suppress_context__  # no frames of the client's are shown


def test_a_mesh_that_was_there_is_taken_over_and_left_to_whom_it_is_now(kube, caplog):
    jobs = [outside(kube), outside(kube)]
    for job in jobs:
        job.add_mesh("workers", 1, image_spec=ImageSpec("i"), port=kube.port)
        job.apply()
    assert "there was a MonarchMesh 'workers'" in caplog.text
    jobs[0].kill()
    assert kube.names(MESHES) == ["workers"] and "another job's by now" in caplog.text
    jobs[1].kill()
    assert nothing_left(kube)


@pytest.mark.parametrize(
    ("kwargs", "error"),
    [
        ({"name": ""}, "not empty"),
        ({"name": "a" * 64}, "at most 63 characters, but 'a+' has 64"),
        ({"name": "Big"}, "lower-case letters and digits only, but is 'Big'"),
        ({"name": "a-b"}, "lower-case letters and digits only, but is 'a-b'"),
        ({"name": "1a"}, "starts with a letter, but is '1a'"),
        ({"name": "there"}, "there is a mesh 'there' already"),
        ({"num_replicas": 0}, "num_replicas must be an int from 1"),
        ({"port": 70000}, "port must be an int from 1 to 65535, but is 70000"),
        ({"image_spec": ImageSpec("i"), "pod_template": {}}, "image_spec or pod_template, not both"),
        ({"image_spec": ImageSpec("i"), "label_selector": "a=b"}, "of pods that are there"),
        ({"image_spec": ImageSpec("i"), "pod_rank_label": "r"}, "of pods that are there"),
        ({"labels": {"a": "b"}}, "of what is made"),
        ({"annotations": {"a": "b"}}, "of what is made"),
        ({"pod_template": {"spec": {}}}, "must be a pod template with spec.containers"),
        ({"pod_template": {"containers": [{"args": ["a"]}]}}, "has args, but no command"),
    ],
)
def test_what_does_not_fit_together_is_refused(kwargs, error):
    job = KubernetesJob("monarch")
    job.add_mesh("there", 1)
    with pytest.raises(ValueError, match=error):
        job.add_mesh(**{"name": "workers", "num_replicas": 1, **kwargs})


def test_nonsense_for_a_job_is_refused():
    with pytest.raises(ValueError, match="namespace must be a str"):
        KubernetesJob("")
    with pytest.raises(ValueError, match="timeout must be seconds"):
        KubernetesJob("n", timeout=-1)
    with pytest.raises(TypeError, match="must be a KubeConfig"):
        KubernetesJob("n", kubeconfig="path")
    with pytest.raises(TypeError, match="must be a kubernetes.client.Configuration"):
        KubeConfig.from_config({})
    with pytest.raises(RuntimeError, match="has no meshes"):
        KubernetesJob("n").state(None)
    with pytest.raises(RuntimeError, match="cannot run batch-mode scripts"):
        KubernetesJob("n").apply("script.py")


def test_without_the_client_the_import_says_what_to_install():
    text = "import sys; sys.modules['kubernetes'] = None; import monarch.job.kubernetes"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    said = "RuntimeError: please install kubernetes to use KubernetesJob. `pip install kubernetes`"
    assert done.stderr.splitlines()[-1] == said


# ---- What is asked for ----


def test_an_image_becomes_a_container_with_what_its_pods_may_use():
    job = KubernetesJob("monarch")
    job.add_mesh("workers", 1, image_spec=ImageSpec("i", {"cpu": 4, "nvidia.com/gpu": 8}, True, "8Gi"))
    pod = job._meshes["workers"].template["spec"]
    (container,) = pod["containers"]
    wanted = {"cpu": "4", "nvidia.com/gpu": "8"}
    assert container["resources"] == {"requests": wanted, "limits": wanted}
    assert container["securityContext"] == {"privileged": True}
    assert container["volumeMounts"] == [{"name": "shm", "mountPath": "/dev/shm"}]
    assert pod["volumes"] == [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}]


def test_a_configuration_that_was_saved_is_replaced_by_a_fresh_one(kube):
    from kubernetes import client

    config = client.Configuration(host=kube.url)
    config.ssl_ca_cert, config.api_key = str(kube.folder / "ca.crt"), {"authorization": f"Bearer {BEARER}"}
    jobs = [KubernetesJob("monarch", kubeconfig=KubeConfig.from_config(config)) for _ in range(2)]
    for job in jobs:
        job.add_mesh("workers", 1, image_spec=ImageSpec("i"), port=kube.port)
    jobs[0].apply()
    kube.wait(lambda kube: kube.objects["pods"]["workers-0"]["status"]["phase"] == "Running")
    loaded = job_loads(jobs[0].dumps())
    assert BEARER.encode() not in pickle.dumps(jobs[0])
    with pytest.raises(RuntimeError, match="a kubeconfig from memory is not saved with a job"):
        loaded.kill()
    assert loaded._running.can_run(jobs[1])
    loaded.kill()
    assert nothing_left(kube)


def test_the_manifests_are_what_a_cluster_reads_and_what_the_job_uses():
    import yaml

    crd = yaml.safe_load((ROOT / "examples/kubernetes/crd.yaml").read_text())
    assert crd["metadata"]["name"] == f"{MESHES}.{GROUP}" == f"{crd['spec']['names']['plural']}.{crd['spec']['group']}"
    assert ("create", "pods/portforward") in rules_of(ROOT / "examples/kubernetes/rbac.yaml")
    docs = (ROOT / "docs/concepts/kubernetes.md").read_text()
    assert "examples/kubernetes/crd.yaml" in docs and "examples/kubernetes/rbac.yaml" in docs


@pytest.mark.parametrize(
    ("ip", "address"),
    [("10.0.0.1", "tcp://10.0.0.1:26600@tcp://*:26600"), ("fd00::1", "tcp://[fd00::1]:26600@tcp://[::]:26600")],
)
def test_a_worker_is_reached_at_the_ip_of_its_pod_and_listens_on_all(tmp_path, ip, address):
    job = KubernetesJob("monarch")
    job.add_mesh("workers", 1, image_spec=ImageSpec("i"))
    template = _kube_manifests.mesh_body(job._meshes["workers"], "0" * 8)["spec"]["podTemplate"]
    command = template["spec"]["containers"][0]["command"]
    (tmp_path / "token").write_text("the token\n")
    write_program(tmp_path / "python", 'echo "$@"; cat')
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "POD_IP": ip, "MONARCH_PORT": "26600"}
    here = [word.replace("/var/run/monarch", str(tmp_path)) for word in command]
    done = subprocess.run(here, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == f"-m monarch worker --bind {address} --token-stdin\nthe token\n"
    pod = _kube_pods.read_pod(described(ip), "rank")
    assert pod.url(job._meshes["workers"]) == address.partition("@")[0]


def described(ip="10.0.0.1", **status):
    conditions = [{"type": "Ready", "status": "True"}]
    metadata = {"name": "pod", "labels": {"rank": "0"}}
    return {"metadata": metadata, "status": {"podIP": ip, "conditions": conditions, **status}}


def test_a_server_that_is_away_for_a_moment_is_waited_for(monkeypatch):
    monkeypatch.setattr(_kube_pods, "_PAUSE_S", 0.0)
    told = []

    class Away:
        answers = [_kube_api.Unreachable("it is away"), ([described()], "1")]

        def pods(self, selector):
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        def changes(self, *_):
            return iter(())

    mesh = _kube_manifests.Mesh("workers", 1, "a=b", "rank", 26600, None, {}, {})
    (pod,) = _kube_pods.wait_for_pods(Away(), mesh, None, None, told.append)
    assert pod.name == "pod" and told == ["it is away; trying again"]


def test_why_a_pod_is_not_ready_is_what_its_status_says():
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    pod = _kube_pods.read_pod(described(phase="Pending", conditions=[unschedulable]), "rank")
    assert not pod.is_ready and pod.why_not == "Pending: Unschedulable: 0/3 nodes"
    pod = described(phase="Running")
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert not _kube_pods.read_pod(pod, "rank").is_ready
    assert _kube_pods.read_pod(described(phase="Running", conditions=[]), "rank").why_not == "Running: not ready yet"

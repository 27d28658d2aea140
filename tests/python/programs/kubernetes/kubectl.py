"""What kubectl port-forward does, for the pods of the stand-in, which are on addresses of this machine."""

import argparse
import socket
import threading

from kubernetes import client, config

parser = argparse.ArgumentParser()
parser.add_argument("--kubeconfig", required=True)
parser.add_argument("--namespace", required=True)
parser.add_argument("command", choices=["port-forward"])
parser.add_argument("--address", required=True)
parser.add_argument("pod")
parser.add_argument("ports")
arguments = parser.parse_args()

api = config.new_client_from_config(config_file=arguments.kubeconfig)
pod = client.CoreV1Api(api).read_namespaced_pod(arguments.pod.removeprefix("pod/"), arguments.namespace)
local, remote = arguments.ports.split(":")


def pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        source.close()
        sink.close()


assert pod.status is not None and pod.status.pod_ip is not None
ip = pod.status.pod_ip
listener = socket.create_server((arguments.address, int(local or 0)))
print(f"Forwarding from {arguments.address}:{listener.getsockname()[1]} -> {remote}", flush=True)
while True:
    near = listener.accept()[0]
    far = socket.create_connection((ip, int(remote)))
    print(f"Handling connection for {local}", flush=True)
    for pair in ((near, far), (far, near)):
        threading.Thread(target=pump, args=pair, daemon=True).start()

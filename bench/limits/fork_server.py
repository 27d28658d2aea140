"""A bare fork server: for each descriptor received on the given socket it forks a child that answers pickled sums."""

import os
import pickle
import signal
import socket
import sys


def answer(link):
    while request := link.recv(256):
        link.send(pickle.dumps(sum(pickle.loads(request)), 5))
    os._exit(0)


def main():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    requests = socket.socket(fileno=int(sys.argv[1]))
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, 1, 1)
        if not message:
            return
        if os.fork() == 0:
            requests.close()
            answer(socket.socket(fileno=descriptors[0]))
        os.close(descriptors[0])


main()

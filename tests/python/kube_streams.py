"""What is opened to a pod of the stand-in for a cluster, over SPDY or a WebSocket: commands, and ways to its ports."""

import base64
import contextlib
import fcntl
import hashlib
import json
import os
import select
import signal
import socket
import ssl
import struct
import subprocess
import termios
import threading

from spdy import Session, Stream

LIMIT = 30
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # of RFC 6455
BINARY, CLOSE, PING, PONG = 2, 8, 9, 10
SPDY, WEBSOCKET = "spdy/3.1", "websocket"
PROTOCOLS = {
    ("exec", SPDY): ["v4.channel.k8s.io"],
    ("exec", WEBSOCKET): ["v5.channel.k8s.io", "v4.channel.k8s.io"],
    ("portforward", SPDY): ["portforward.k8s.io"],
    ("portforward", WEBSOCKET): ["SPDY/3.1+portforward.k8s.io"],  # SPDY inside of messages
}
CHANNELS = ["stdin", "stdout", "stderr", "error", "resize"]  # by their numbers, in WebSockets
CLOSED = 255  # a channel is, by the number that follows; only in v5


class Wire:
    """A connection of TLS, which one thread reads and any may write. Its object of TLS does one thing at a time."""

    def __init__(self, connection):
        connection.setblocking(False)
        self._connection, self._lock, self._turn, self._left = connection, threading.Lock(), threading.Lock(), b""

    def read(self, count):
        while len(self._left) < count:
            try:
                data = self._try(lambda: self._connection.recv(1 << 16))
            except (OSError, ValueError):
                data = b""
            if not data:
                raise EOFError
            self._left += data
        data, self._left = self._left[:count], self._left[count:]
        return data

    def write(self, data):
        with self._turn:
            while data:
                data = data[self._try(lambda data=data: self._connection.send(data)) :]

    def _try(self, call):
        while True:
            try:
                with self._lock:
                    return call()
            except ssl.SSLWantReadError:
                select.select([self._connection], [], [])
            except ssl.SSLWantWriteError:
                select.select([], [self._connection], [])

    def close(self):
        """Whoever reads is at the end then."""
        with self._lock, contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)


class WebSocket:
    """Messages, each of which is one frame here, and maybe more over there."""

    def __init__(self, wire):
        self._wire, self._left = wire, b""

    def receive(self):
        """EOFError at the end."""
        message = b""
        while True:
            first, second = self._wire.read(2)
            length = second & 127
            if length > 125:
                length = int.from_bytes(self._wire.read(2 if length == 126 else 8), "big")
            mask = self._wire.read(4)
            data = unmasked(self._wire.read(length), mask)
            kind = first & 15
            if kind == CLOSE:
                with contextlib.suppress(OSError):
                    self.send(data[:2], CLOSE)
                raise EOFError
            if kind == PING:
                self.send(data, PONG)
            if kind < CLOSE:
                message += data
                if first >> 7:
                    return message

    def send(self, data, kind=BINARY):
        count = len(data)
        length = bytes([count]) if count < 126 else struct.pack("!BQ", 127, count)
        self._wire.write(bytes([0x80 | kind]) + length + data)

    # ---- As a wire, for SPDY ----

    def read(self, count):
        while len(self._left) < count:
            self._left += self.receive()
        data, self._left = self._left[:count], self._left[count:]
        return data

    def write(self, data):
        self.send(data)


def unmasked(data, mask):
    many = (mask * (len(data) // 4 + 1))[: len(data)]
    return (int.from_bytes(data, "big") ^ int.from_bytes(many, "big")).to_bytes(len(data), "big")


class Channels:
    """Streams in a WebSocket, with numbers before what they say."""

    def __init__(self, websocket):
        self.websocket = websocket
        self.streams = {name: Stream({}, self.sender(number)) for number, name in enumerate(CHANNELS)}

    def sender(self, number):
        return lambda data, is_last: None if is_last else self.websocket.send(bytes([number]) + data)

    def serve(self):
        try:
            while True:
                message = self.websocket.receive()
                number, data = message[0], message[1:]
                if number == CLOSED:
                    number, data = data[0], b""
                elif not data:
                    continue
                self.streams[CHANNELS[number]].came(data)
        except (EOFError, OSError):
            pass
        finally:
            for stream in self.streams.values():
                stream.came(b"")


def accept(handler, part):
    """Says yes to what kubectl, or a client, wants to go over to; None: it is nothing that is known."""
    way = handler.headers.get("Upgrade", "").lower()
    name = "Sec-WebSocket-Protocol" if way == WEBSOCKET else "X-Stream-Protocol-Version"
    offered = [each.strip() for line in handler.headers.get_all(name, []) for each in line.split(",")]
    chosen = next((each for each in PROTOCOLS.get((part, way), []) if each in offered), None)
    if chosen is None:
        return None
    handler.send_response(101)
    handler.send_header("Connection", "Upgrade")
    handler.send_header("Upgrade", handler.headers["Upgrade"])
    handler.send_header(name, chosen)
    if way == WEBSOCKET:
        key = handler.headers["Sec-WebSocket-Key"].encode()
        handler.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key + GUID).digest()).decode())
    handler.end_headers()
    return way


# ---- Commands ----


def wanted(queries):
    """The streams of a command."""
    asked = {name for name in ("stdin", "stdout", "stderr") if queries.get(name, [""])[0] in ("true", "True", "1")}
    return {"error"} | asked | ({"resize"} if is_terminal(queries) else set())


def is_terminal(queries):
    return queries.get("tty", [""])[0] in ("true", "True", "1")


def execute(way, wire, queries, env):
    """Until the other side has gone; the command has ended then."""
    if way == WEBSOCKET:
        websocket = WebSocket(wire)
        channels = Channels(websocket)
        streams = {name: channels.streams[name] for name in wanted(queries)}
        command = Command(queries["command"], is_terminal(queries), streams, env)
        command.start(lambda: websocket.send(struct.pack("!H", 1000), CLOSE))
        channels.serve()
        return command.end()
    streams, commands = {}, []

    def opened(stream):
        streams[stream.headers["streamtype"]] = stream
        if set(streams) == wanted(queries):
            commands.append(Command(queries["command"], is_terminal(queries), streams, env))
            commands[0].start(lambda: None)

    Session(wire).serve(opened)
    for command in commands:
        command.end()


class Command:
    def __init__(self, arguments, is_terminal, streams, env):
        self.arguments, self.is_terminal, self.streams, self.env = arguments, is_terminal, streams, env
        self.lock, self.process, self.is_over = threading.Lock(), None, False

    def start(self, at_end):
        self.thread = threading.Thread(target=self.run, args=(at_end,), daemon=True)
        self.thread.start()

    def end(self):
        with self.lock:
            self.is_over = True
            if self.process is not None and self.process.returncode is None:
                os.killpg(self.process.pid, signal.SIGKILL)
        self.thread.join(LIMIT)

    def run(self, at_end):
        with contextlib.suppress(OSError, ValueError):
            self.tell(self.status())
            for stream in self.streams.values():
                stream.close()
            at_end()

    def tell(self, status):
        self.streams["error"].write(json.dumps({"metadata": {}, **status}).encode())

    def status(self):
        try:
            with self.lock:
                if self.is_over:
                    return {"status": "Failure"}
                pumps = self.begin_on_terminal() if self.is_terminal else self.begin()
        except OSError as error:
            message = f'exec: "{self.arguments[0]}": {error.strerror}'
            return {"status": "Failure", "reason": "InternalError", "message": message, "code": 500}
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        with self.lock:  # until here its group has its number
            code = self.process.wait()
        for pump in pumps:
            pump.join(LIMIT)
        if code == 0:
            return {"status": "Success"}
        code = code if code > 0 else 128 - code
        message = f"command terminated with non-zero exit code: {code}"
        causes = [{"reason": "ExitCode", "message": str(code)}]
        return {"status": "Failure", "reason": "NonZeroExitCode", "message": message, "details": {"causes": causes}}

    def begin(self):
        pipes = {name: subprocess.PIPE if name in self.streams else subprocess.DEVNULL
                 for name in ("stdin", "stdout", "stderr")}  # fmt: skip
        process = subprocess.Popen(self.arguments, env=self.env, start_new_session=True, bufsize=0, **pipes)
        self.process = process
        if "stdin" in self.streams:
            begin(take_in, self.streams["stdin"], process.stdin)
        return [
            begin(give_out, pipe, self.streams[name])
            for name, pipe in (("stdout", process.stdout), ("stderr", process.stderr))
            if pipe is not None
        ]

    def begin_on_terminal(self):
        near, far = os.openpty()
        with open(far, "rb", buffering=0) as terminal:
            set_size(self.streams["resize"].read(), far)  # which comes when kubectl has made its streams
            ends = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
            self.process = subprocess.Popen(["setsid", "-c", *self.arguments], env=self.env, **ends)
        pipe = open(near, "r+b", buffering=0)
        begin(resize, self.streams["resize"], open(os.dup(near), "r+b", buffering=0))
        if "stdin" in self.streams:
            begin(take_in, self.streams["stdin"], open(os.dup(near), "wb", buffering=0))
        return [begin(give_out, pipe, self.streams["stdout"])]


def begin(function, *arguments):
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


def take_in(stream, pipe):
    with contextlib.suppress(OSError), pipe:
        while data := stream.read():
            while data:
                data = data[pipe.write(data) :]


def give_out(pipe, stream):
    with contextlib.suppress(OSError), pipe:  # of a terminal that nobody has any more
        while data := pipe.read(1 << 16):
            stream.write(data)
    with contextlib.suppress(OSError):
        stream.close()


def resize(stream, terminal):
    with terminal:
        while data := stream.read():
            with contextlib.suppress(OSError):
                set_size(data, terminal)


def set_size(data, terminal):
    if data:
        size = json.loads(data)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size["Height"], size["Width"], 0, 0))


# ---- Ports ----


class Forwards:
    """The pod has an address of its own here, where it would have a network of its own."""

    def __init__(self, name, ip):
        self.name, self.ip = name, ip
        self.errors, self.sockets, self.threads = {}, set(), []

    def serve(self, way, wire):
        """Until the other side has gone."""
        Session(WebSocket(wire) if way == WEBSOCKET else wire).serve(self.opened)
        self.break_connections()
        for thread in self.threads:
            thread.join(LIMIT)

    def opened(self, stream):
        """A connection has two streams: for what goes wrong, and then for its bytes."""
        number = stream.headers["requestid"]
        if stream.headers["streamtype"] == "error":
            self.errors[number] = stream
        else:
            self.threads.append(begin(self.connect, stream, self.errors.pop(number)))

    def connect(self, stream, error):
        port = int(stream.headers["port"])
        with contextlib.suppress(OSError):
            try:
                far = socket.create_connection((self.ip, port), LIMIT)
            except OSError as reason:
                error.write(f"error forwarding port {port} to pod {self.name}: {reason.strerror}".encode())
            else:
                far.settimeout(None)
                self.sockets.add(far)
                up = begin(self.send, stream, far)
                with contextlib.suppress(OSError):
                    while data := far.recv(1 << 16):
                        stream.write(data)
                stream.close()
                error.close()
                up.join()
                self.sockets.discard(far)
                far.close()
            stream.close()
            error.close()

    def send(self, stream, far):
        with contextlib.suppress(OSError):
            while data := stream.read():
                far.sendall(data)
            far.shutdown(socket.SHUT_WR)

    def break_connections(self):
        """Those to the pod; what they come by stays."""
        for far in list(self.sockets):
            with contextlib.suppress(OSError):
                far.shutdown(socket.SHUT_RDWR)

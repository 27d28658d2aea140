"""SPDY/3.1, the side of the server, as far as kubectl speaks it: no settings, no priorities, and, as kubectl keeps no
windows either, no flow control."""

import queue
import struct
import threading
import zlib

SYN_STREAM, SYN_REPLY, RST_STREAM, SETTINGS, PING, GOAWAY, HEADERS, WINDOW_UPDATE = 1, 2, 3, 4, 6, 7, 8, 9
FIN, VERSION, CONTROL = 1, 3, 0x8000
REFUSED = 3  # the status of a stream that nobody wants

_WORDS = """options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age
allow authorization cache-control connection content-base content-encoding content-language content-length
content-location content-md5 content-range content-type date etag expect expires from host if-match if-modified-since
if-none-match if-range if-unmodified-since last-modified location max-forwards pragma proxy-authenticate
proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade user-agent vary via warning
www-authenticate method get status 200_OK version HTTP/1.1 url public set-cookie keep-alive origin"""
_REST = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden"
    "404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,"
    "publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)


def _string(text):
    return struct.pack("!I", len(text)) + text


DICTIONARY = b"".join(_string(word.replace("_", " ").encode()) for word in _WORDS.split()) + _REST.encode()


class Stream:
    """What has two ends that close on their own. ``send``: takes (data, whether it is the last)."""

    def __init__(self, headers, send):
        self.headers, self._send, self._came = headers, send, queue.SimpleQueue()
        self._is_closed = self._is_at_end = False

    def read(self):
        """What has come next; empty: no more comes."""
        if not self._is_at_end:
            data = self._came.get()
            self._is_at_end = not data
            return data
        return b""

    def write(self, data):
        self._send(data, False)

    def close(self):
        """This end; what the other one says comes still."""
        if not self._is_closed:
            self._is_closed = True
            self._send(b"", True)

    def came(self, data):
        self._came.put(data)


class Session:
    """``wire`` has ``read(count)``, EOFError at its end, and ``write(data)``. Any thread may write to its streams."""

    def __init__(self, wire):
        self._wire, self._lock, self._streams = wire, threading.Lock(), {}
        self._inflate, self._deflate = zlib.decompressobj(zdict=DICTIONARY), zlib.compressobj(zdict=DICTIONARY)

    def serve(self, opened):
        """Calls ``opened(stream)``, which returns soon, until the wire ends; then all streams end."""
        try:
            while True:
                first, second = struct.unpack("!II", self._wire.read(8))
                flags, data = second >> 24, self._wire.read(second & 0xFFFFFF)
                if first >> 31:
                    self._control(first & 0xFFFF, flags, data, opened)
                else:
                    self._came(first, data, flags)
        except (EOFError, OSError):
            pass
        finally:
            for stream in self._streams.values():
                stream.came(b"")

    def _control(self, kind, flags, data, opened):
        number = struct.unpack("!I", data[:4])[0] & 0x7FFFFFFF
        if kind == SYN_STREAM:
            headers = read_headers(self._inflate.decompress(data[10:]))
            stream = self._streams[number] = Stream(headers, lambda data, is_last: self._send(number, data, is_last))
            self._write(SYN_REPLY, struct.pack("!I", number), headers={})
            opened(stream)
            self._came(number, b"", flags)
        elif kind == HEADERS:
            self._inflate.decompress(data[4:])  # the next block goes on from there
        elif kind == RST_STREAM:
            self._came(number, b"", FIN)
        elif kind == PING:
            self._write(PING, data)

    def _came(self, number, data, flags):
        if (stream := self._streams.get(number)) is not None:
            if data:
                stream.came(data)
            if flags & FIN:
                stream.came(b"")

    def _send(self, number, data, is_last):
        with self._lock:
            self._wire.write(struct.pack("!II", number, is_last << 24 | len(data)) + data)

    def _write(self, kind, data, headers=None):
        with self._lock:  # the order of what is compressed is the order on the wire
            if headers is not None:
                data += self._deflate.compress(pack_headers(headers)) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
            self._wire.write(struct.pack("!HHI", CONTROL | VERSION, kind, len(data)) + data)


def pack_headers(headers):
    pairs = [_string(part.encode()) for pair in headers.items() for part in pair]
    return struct.pack("!I", len(headers)) + b"".join(pairs)


def read_headers(block):
    at = 4
    parts = []
    for _ in range(2 * struct.unpack("!I", block[:4])[0]):
        (length,) = struct.unpack("!I", block[at : at + 4])
        parts.append(block[at + 4 : at + 4 + length].decode())
        at += 4 + length
    return dict(zip(parts[::2], parts[1::2], strict=True))

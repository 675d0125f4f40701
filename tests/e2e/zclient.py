# SPDX-License-Identifier: Apache-2.0
"""A ZeroMQ client of pipit for tests: pyzmq and Google's protobuf, so that the protocol is spoken by
an implementation that shares nothing with pipit. pipit.proto is compiled at test time."""
import importlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]


def skip(reason):
    print(f"SKIP: {reason}", file=sys.stderr, flush=True)
    sys.exit(77)


try:
    import zmq
except ImportError as missing:
    skip(f"python3-zmq is not installed: {missing}")


def load_pb():
    """The module that protoc makes of pipit.proto."""
    if not shutil.which("protoc"):
        skip("protoc (package protobuf-compiler) is not installed")
    folder = tempfile.mkdtemp(prefix="pipit-pb-")
    try:
        subprocess.run(["protoc", f"--python_out={folder}", f"--proto_path={SOURCE}/proto/zmq", "pipit.proto"],
                       check=True)
        sys.path.insert(0, folder)
        return importlib.import_module("pipit_pb2")
    except ImportError as e:
        skip(f"python3-protobuf is not installed: {e}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


pb = load_pb()
CONTEXT = zmq.Context()


class Timeout(Exception):
    pass


class Client:
    def __init__(self, path, kind=zmq.DEALER, context=CONTEXT, **options):
        self.socket = context.socket(kind)
        self.socket.linger = 0
        self.socket.reconnect_ivl = 10
        for name, value in options.items():
            setattr(self.socket, name, value)
        self.socket.connect(f"ipc://{path}")

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def send_raw(self, *frames):
        self.socket.send_multipart(frames)

    def send(self, request):
        """Sends a Request, with a random id if it has none; returns the id."""
        if not request.id:
            request.id = os.urandom(16)
        self.socket.send(request.SerializeToString())
        return request.id

    def receive(self, timeout=20.0):
        if not self.socket.poll(int(timeout * 1000)):
            raise Timeout(f"no event within {timeout} s")
        frames = self.socket.recv_multipart()
        if len(frames) == 2 and frames[0] == b"":
            frames = frames[1:]
        assert len(frames) == 1, frames
        return pb.Event.FromString(frames[0])

    def events(self, request, timeout=20.0):
        """Sends and yields that request's events up to the last."""
        rid = self.send(request)
        while True:
            e = self.receive(timeout)
            if e.id not in (rid, b""):
                continue
            yield e
            if e.WhichOneof("body") in ("done", "error", "pong", "status", "sessions"):
                return

    def last(self, request, timeout=20.0):
        for e in self.events(request, timeout):
            pass
        return e

    def text(self, request, timeout=20.0):
        """(whole text, Done); fails on an Error."""
        out = b""
        for e in self.events(request, timeout):
            if e.HasField("delta"):
                out += e.delta.text
            elif e.HasField("error"):
                raise AssertionError(e.error)
        return out, e.done

    def ping(self, timeout=5.0):
        r = pb.Request()
        r.ping.SetInParent()
        e = self.last(r, timeout)
        assert e.HasField("pong"), e
        return e.pong


def generate(prompt, **sampling):
    r = pb.Request(id=os.urandom(16))
    r.generate.prompt = prompt if isinstance(prompt, bytes) else prompt.encode()
    for name, value in sampling.items():
        if name == "stop":
            r.generate.sampling.stop.extend(value)
        else:
            setattr(r.generate.sampling, name, value)
    return r


def wait_until(what, seconds=5.0, step=0.01):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if what():
            return True
        time.sleep(step)
    return False

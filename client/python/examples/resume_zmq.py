#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Asks pipit over ZeroMQ and does not mind when the gateway, the engine or the daemon dies meanwhile.

A DEALER does not notice that its peer was restarted. So this client pings once a second while it
waits; when the gateway's epoch in the pong has changed, or none came, it resumes its request by id
from the next event it wants. Sending the same request again would do, too: a known id attaches.

usage: resume_zmq.py ZMQ_SOCKET PROMPT     (pipit_pb2.py is made as in ask_zmq.py)"""
import os
import sys
import time

import pipit_pb2 as pb
import zmq


class Answer:
    def __init__(self, path, prompt):
        self.socket = zmq.Context().socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect("ipc://" + path)
        self.id, self.next_seq, self.epoch = os.urandom(16), 1, None
        self.request = pb.Request(id=self.id, progress=True)
        self.request.chat.messages.add(role=pb.Message.USER, content=prompt.encode())
        self.request.chat.sampling.max_tokens = 512

    def send(self, **body):
        r = pb.Request(id=self.id if "resume" in body else os.urandom(16), **body)
        self.socket.send(r.SerializeToString())

    def resume(self):
        self.send(resume=pb.Resume(next_seq=self.next_seq))

    def run(self, give_up_s=30):
        """Yields text; returns Done; raises RuntimeError for an Error or a daemon that stays away."""
        self.socket.send(self.request.SerializeToString())
        self.send(ping=pb.Ping())
        heard = time.monotonic()
        while time.monotonic() - heard < give_up_s:
            if not self.socket.poll(1000):
                self.send(ping=pb.Ping())
                continue
            e = pb.Event.FromString(self.socket.recv())
            heard = time.monotonic()
            if e.HasField("pong"):
                if self.epoch not in (None, e.pong.gateway_epoch):
                    self.resume()
                self.epoch = e.pong.gateway_epoch
            if e.id != self.id or (e.seq and e.seq < self.next_seq):
                continue
            self.next_seq = max(self.next_seq, e.seq + 1)
            if e.HasField("delta"):
                yield e.delta.text
            elif e.HasField("done"):
                return e.done
            elif e.HasField("error"):
                raise RuntimeError(f"{pb.Error.Code.Name(e.error.code)}: {e.error.text.decode()}")
        raise RuntimeError("the daemon does not answer")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: resume_zmq.py ZMQ_SOCKET PROMPT")
    for text in Answer(sys.argv[1], sys.argv[2]).run():
        sys.stdout.buffer.write(text)
        sys.stdout.flush()
    print()

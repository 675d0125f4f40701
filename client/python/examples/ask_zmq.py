# SPDX-License-Identifier: Apache-2.0
# protoc --python_out=. --proto_path=/usr/share/pipit pipit.proto   (or proto/zmq of the source tree)
# python3 ask_zmq.py RUNTIME_DIR/zmq.sock "What is the capital of France?"
import os, sys, zmq, pipit_pb2 as pb  # noqa: E401

if len(sys.argv) != 3:
    sys.exit("usage: ask_zmq.py ZMQ_SOCKET PROMPT   ('pipit status' names the folder of zmq.sock)")
socket = zmq.Context().socket(zmq.DEALER)
socket.linger = 0
socket.connect("ipc://" + sys.argv[1])
# libzmq connects whenever somebody listens, and says nothing until then: a ping tells.
socket.send(pb.Request(id=os.urandom(16), ping=pb.Ping()).SerializeToString())
if not socket.poll(5000):
    sys.exit(f"{sys.argv[1]}: nobody answers within 5 s; is it the zmq.sock of a running daemon?")
socket.recv()
request = pb.Request(id=os.urandom(16))
request.chat.messages.add(role=pb.Message.USER, content=sys.argv[2].encode())
request.chat.sampling.temperature = 0
socket.send(request.SerializeToString())
while True:
    event = pb.Event.FromString(socket.recv())
    print(event.delta.text.decode(), end="", flush=True)
    if event.HasField("done") or event.HasField("error"):
        sys.exit(event.error.text.decode() if event.HasField("error") else print())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the service costs beside the engine: CPU of front, gateway and client a token; the speed of an answer through the
command line beside the engine alone; each step's logits through shared memory beside the same bytes as ZeroMQ messages.

The sum that is held against the limit is of all processes that stand between the engine and the eyes of a client of the
gateway: front and gateway (both its threads) while a ZeroMQ client is served, and a client, for which `pipit ask` stands, the
start of its process taken off. CPU time is what the kernel charges them, so it includes waking up, with caches that the pause
between two tokens has left cold. What as many processes cost that only receive and pass on (relay.c) is measured beside it.

usage: overhead.py [--model FILE] [--tokens N] [--pairs N] [--draft N] [--json FILE]
PIPIT_BUILD is the build folder; PIPIT_SMOLLM2 the model unless --model says otherwise. Wants a quiet machine."""
import argparse
import csv
import datetime
import io
import json
import math
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "../../tests/e2e"), os.path.join(HERE, "..")]
from daemon import BUILD, STORIES, Daemon, wait_until  # noqa: E402
from harness import PIPIT, environment  # noqa: E402
from lane import BULK, E2C, S_IGNORE_END, TOKEN, prompt  # noqa: E402
from student import t975  # noqa: E402

EIGHT = 8


def cpu_us(pid):
    """CPU time of all threads of a process."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat") as f:
            total += int(f.read().split()[0])
    return total / 1e3


def start_ask(d, n, *more, text="Once upon a time", cli=PIPIT):
    command = [cli, "ask", "--runtime-dir", d.folder, "--raw", "--temp", "0", "-n", str(n), *more, text]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment())


def end_ask(p):
    """(rusage µs of the client, what it said)"""
    out = p.stdout.read()
    _, status, usage = os.wait4(p.pid, 0)
    p.returncode = os.waitstatus_to_exitcode(status)
    assert p.returncode == 0, status
    return (usage.ru_utime + usage.ru_stime) * 1e6, out


def ask(d, n, *more, **kw):
    return end_ask(start_ask(d, n, *more, **kw))


def through_lane(d, n, repeats):
    """CPU a token of the front and of `pipit ask`, its start taken off."""
    start = min(ask(d, 1)[0] for _ in range(5))
    front = cpu_us(d.process.pid)
    client = [ask(d, n)[0] - start for _ in range(repeats)]
    return (cpu_us(d.process.pid) - front) / n / repeats, statistics.median(client) / n


def through_gateway(d, n, repeats):
    """CPU a token of the front and of the gateway."""
    try:
        from zclient import Client, generate
    except SystemExit:
        return None
    gateway = d.child("pipit-gateway")
    with Client(os.path.join(d.folder, "zmq.sock")) as c:
        c.text(generate("Once upon a time", temperature=0, max_tokens=8, ignore_end=True), 60)
        before = cpu_us(d.process.pid), cpu_us(gateway)
        for _ in range(repeats):
            c.text(generate("Once upon a time", temperature=0, max_tokens=n, ignore_end=True), 60)
        return ((cpu_us(d.process.pid) - before[0]) / n / repeats, (cpu_us(gateway) - before[1]) / n / repeats)


def of_eight(d, n, repeats):
    """CPU a token of front, gateway and client while eight clients are served in one batch, whose step tells all of them their
    token: eight of the gateway's, then eight `pipit ask` over lanes, the start of their processes taken off."""
    from zclient import Client, generate
    import zmq
    gateway = d.child("pipit-gateway")
    clients = [Client(os.path.join(d.folder, "zmq.sock")) for _ in range(EIGHT)]
    poller = zmq.Poller()
    for c in clients:
        poller.register(c.socket, zmq.POLLIN)
    by_socket = {c.socket: c for c in clients}

    def over_zmq(m):
        for i, c in enumerate(clients):
            c.send(generate(f"Once upon a time {i}", temperature=0, max_tokens=m, ignore_end=True))
        left = EIGHT
        while left:
            ready = poller.poll(60000)
            assert ready, "no event within a minute"
            for socket, _ in ready:
                e = by_socket[socket].receive()
                assert not e.HasField("error"), e.error
                left -= e.HasField("done")

    def over_lanes(m):
        running = [start_ask(d, m, text=f"Once upon a time {i}") for i in range(EIGHT)]
        return sum(end_ask(p)[0] for p in running)

    over_zmq(8)
    before = cpu_us(d.process.pid), cpu_us(gateway)
    for _ in range(repeats):
        over_zmq(n)
    tokens = n * EIGHT
    front, door = (cpu_us(d.process.pid) - before[0]) / tokens / repeats, (cpu_us(gateway) - before[1]) / tokens / repeats
    start = min(over_lanes(1) for _ in range(3))
    client = statistics.median(over_lanes(n) - start for _ in range(repeats)) / tokens
    for c in clients:
        c.close()
    return {"zmq_front": round(front, 1), "zmq_gateway": round(door, 1), "lane_client": round(client, 1),
            "gateway_front_client": round(front + door + client, 1)}


def relays(pace_ms, n):
    """CPU a record, in order: of processes that only receive and pass on, as many as front, gateway, its I/O thread and client;
    they are woken by one more, which stands for the engine's I/O thread."""
    program = os.path.join(BUILD, "bench/relay")
    if not os.path.exists(program):
        return None
    out = subprocess.run([program, f"{pace_ms:.3f}", str(n), "5"], capture_output=True, text=True, check=True).stdout
    stages = sorted((int(i), float(us)) for i, us in (line.split(",") for line in out.split()))
    return [us for _, us in stages[1:]]


def speed_of_service(d, n):
    """New tokens a second as the client sees them, from the first token to the end."""
    out = ask(d, n, "--json", "--no-draft")[1]  # the engine alone drafts nothing
    last = json.loads(out.splitlines()[-1])
    t = last["timings"]
    return (last["usage"]["completion_tokens"] - 1) / (t["total_ms"] - t["ttft_ms"]) * 1e3


def speed_alone(args):
    command = [os.path.join(BUILD, "bench/pipit-bench"), "--model", args.model, "--backend", args.backend, "-t", str(args.threads),
               "--prefill", "", "--depth", "5", "-n", str(args.tokens - 1), "-r", "1", "--real", "--header"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(next(r for r in csv.DictReader(io.StringIO(out)) if r["what"] == "decode")["value"])


def logits(d, n, repeats):
    """µs a token with each step's logits in the client's mapping, and without; bytes of a row."""
    lane = d.ready()
    row = lane.hello.n_vocab * 4
    lease = lane.lease(E2C, row)
    assert lease.type == 0x41, lease

    def run(out):
        rid, first, count = lane.request(prompt("Once upon a time", n, flags=S_IGNORE_END), out=out), None, 0
        for e in lane.events(rid):
            if e.type == BULK:
                count += 1
            if e.type == TOKEN and first is None:
                first = time.perf_counter()
        assert count == (n if out else 0), count
        return (time.perf_counter() - first) / (n - 1) * 1e6
    run(None)
    pairs = [(run(lease), run(None)) for _ in range(repeats)]
    lane.close()
    return row, statistics.median(a - b for a, b in pairs), statistics.median(b for _, b in pairs)


def zmq_messages(row, n):
    """µs of a message of `row` bytes over ipc, sent and received in C by libzmq, one at a time as tokens come."""
    try:
        import zmq
    except ImportError:
        return None
    import tempfile
    import threading
    with tempfile.TemporaryDirectory() as folder:
        context = zmq.Context()
        a, b = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        a.bind(f"ipc://{folder}/s")
        b.connect(f"ipc://{folder}/s")
        data = os.urandom(row)

        def echo():
            for _ in range(n + 20):
                m = a.recv(copy=False)
                a.send(b"x")
                del m
        t = threading.Thread(target=echo)
        t.start()
        began, cpu = 0.0, 0.0
        for i in range(n + 20):
            if i == 20:
                began, cpu = time.perf_counter(), time.process_time()
            b.send(data, copy=True)
            b.recv()
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu
        t.join()
        began2 = time.perf_counter()
        t = threading.Thread(target=echo)
        t.start()
        for i in range(n + 20):
            if i == 20:
                began2 = time.perf_counter()
            b.send(b"y", copy=True)
            b.recv()
        empty = time.perf_counter() - began2
        t.join()
        context.destroy(0)
    return (wall - empty) / n * 1e6, cpu / n * 1e6


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--model", default=os.environ.get("PIPIT_SMOLLM2", STORIES))
    p.add_argument("--backend", default="cpu")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--tokens", type=int, default=200)
    p.add_argument("--pairs", type=int, default=10)
    p.add_argument("--repeats", type=int, default=5)
    p.add_argument("--draft", type=int, help="of the daemon, while CPU time is measured; drafts put several tokens into one step")
    p.add_argument("--json")
    args = p.parse_args()
    gateway = os.path.exists(os.path.join(BUILD, "daemon/gateway/pipit-gateway"))
    draft = ["--draft", str(args.draft)] if args.draft is not None else []
    d = Daemon("--ctx", "512", *draft, model=args.model, backend=args.backend, gateway="yes" if gateway else "no")
    d.ready().close()
    front, client = through_lane(d, args.tokens, args.repeats)
    if gateway:
        wait_until(lambda: os.path.exists(os.path.join(d.folder, "zmq.sock")))
    over_zmq = through_gateway(d, args.tokens, args.repeats) if gateway else None
    d.stop(30)
    d = Daemon("--ctx", "2048", "--sequences", str(EIGHT), *draft, model=args.model, backend=args.backend,
               gateway="yes" if gateway else "no")
    d.ready().close()
    if gateway:
        wait_until(lambda: os.path.exists(os.path.join(d.folder, "zmq.sock")))
    eight = of_eight(d, args.tokens, args.repeats) if over_zmq else None
    d.stop(30)
    d = Daemon("--ctx", "512", model=args.model, backend=args.backend, gateway="no")
    row, extra, plain = logits(d, args.tokens, args.repeats)
    ratios = []
    for i in range(args.pairs):
        pair = [lambda: speed_of_service(d, args.tokens), lambda: speed_alone(args)]
        got = {k: pair[k]() for k in ((0, 1) if i % 2 else (1, 0))}
        ratios.append(got[0] / got[1])
    d.stop(30)
    logs = [math.log(r) for r in ratios]
    mean, half = statistics.mean(logs), 0.0
    if len(logs) > 1:
        half = t975(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    message = zmq_messages(row, 300)
    least = relays(plain / 1e3, 200)
    with open("/proc/cpuinfo") as f:
        cpu = next((line.split(":")[1].strip() for line in f if line.startswith("model name")), "?")
    worst = (over_zmq[0] + over_zmq[1] if over_zmq else front) + client
    result = {
        "command": "bench/service/overhead.py " + " ".join(sys.argv[1:]), "date": datetime.date.today().isoformat(),
        "machine": f"{cpu}, {os.cpu_count()} CPUs", "model": os.path.basename(args.model), "tokens": args.tokens,
        "cpu_us_a_token": {"lane_front": round(front, 1), "lane_client": round(client, 1),
                           "zmq_front": over_zmq and round(over_zmq[0], 1), "zmq_gateway": over_zmq and round(over_zmq[1], 1),
                           "gateway_front_client": round(worst, 1), "limit": 100,
                           "eight_clients": eight,
                           "relays_only": least and [round(us, 1) for us in least], "relays_sum": least and round(sum(least), 1)},
        "service_to_engine_speed": {"pairs": len(ratios), "mean": round(math.exp(mean), 4),
                                    "ci95": [round(math.exp(mean - half), 4), round(math.exp(mean + half), 4)] if half else None, "limit": 0.95},
        "logits": {"row_bytes": row, "token_us": round(plain, 1), "lane_extra_us": round(extra, 1), "lane_copies": 1,
                   "lane_bytes_copied": row, "zmq_extra_us": message and round(message[0], 1),
                   "zmq_cpu_us": message and round(message[1], 1), "zmq_copies": 3, "zmq_bytes_copied": 3 * row},
    }
    print(json.dumps(result, indent=1))
    if args.json:
        with open(args.json, "w") as f:
            f.write(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

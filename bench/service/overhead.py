#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the service costs beside the engine: CPU of front, gateway and client a token. The speed of an answer through the
command line beside the engine alone is pairs.py's, logits through shared memory and ZeroMQ bench/logits'.

The sum that is held against the limit is of all processes that stand between the engine and the eyes of a client of the
gateway: front and gateway (both its threads) while a ZeroMQ client is served, and a client, for which `pipit ask` stands, the
start of its process taken off. CPU time is what the kernel charges them, so it includes waking up, with caches that the pause
between two tokens has left cold. What as many processes cost that only receive and pass on (relay.c) is measured beside it.

usage: overhead.py [--model FILE] [--tokens N] [--draft N] [--json FILE]
PIPIT_BUILD is the build folder; PIPIT_SMOLLM2 the model unless --model says otherwise. Wants a quiet machine."""
import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../tests/e2e"))
from daemon import BUILD, STORIES, Daemon, wait_until  # noqa: E402
from harness import PIPIT, environment  # noqa: E402

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


def pace_ms(d, n):
    """From one token to the next, as a client sees it."""
    t = json.loads(ask(d, n, "--json")[1].splitlines()[-1])["timings"]
    return (t["total_ms"] - t["ttft_ms"]) / (n - 1)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--model", default=os.environ.get("PIPIT_SMOLLM2", STORIES))
    p.add_argument("--backend", default="cpu")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--tokens", type=int, default=200)
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
    pace = pace_ms(d, args.tokens)
    d.stop(30)
    d = Daemon("--ctx", "2048", "--sequences", str(EIGHT), *draft, model=args.model, backend=args.backend,
               gateway="yes" if gateway else "no")
    d.ready().close()
    if gateway:
        wait_until(lambda: os.path.exists(os.path.join(d.folder, "zmq.sock")))
    eight = of_eight(d, args.tokens, args.repeats) if over_zmq else None
    d.stop(30)
    least = relays(pace, 200)
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
    }
    print(json.dumps(result, indent=1))
    if args.json:
        with open(args.json, "w") as f:
            f.write(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

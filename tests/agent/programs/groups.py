# ruff: noqa
"""Two or more gloo ranks that do what the first argument says; `say` prints a line at once."""
import datetime
import os
import sys
import time

import torch
import torch.distributed as dist


def say(*words):
    print(*words, flush=True)


def timeouts():
    """The timeout of each group, asked of the backend itself."""
    def of(group):
        options = group._get_backend(torch.device("cpu")).options
        return options._timeout.total_seconds()

    long = datetime.timedelta(seconds=777)
    more = {"timeout": long} if "explicit" in sys.argv else {}
    dist.init_process_group("gloo", **more)
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    say(of(dist.group.WORLD), of(dist.new_group(**more)), of(dist.new_group([0], *more.values())), of(mesh.get_group()))
    dist.destroy_process_group()


def absent():
    """Rank 1 never joins the collective. The timeout is that of the start, too: both begin it at a word."""
    say("imported")
    sys.stdin.readline()
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        say("stays away")
        sys.stdin.read()
        return
    dist.all_reduce(torch.zeros(1))


def life():
    dist.init_process_group(backend="gloo", world_size=int(os.environ["WORLD_SIZE"]), rank=int(os.environ["RANK"]))
    group = dist.new_group([0])
    if dist.get_rank() == 0:
        dist.destroy_process_group(group)
    say("initialised")
    dist.barrier()  # a rank that leaves while its peer still connects to it ends the peer
    dist.destroy_process_group()
    say("destroyed")


def stuck():
    """Rank 1 stays away from the fourth collective."""
    dist.init_process_group("gloo")
    sub = dist.new_group([0, 1])
    for _ in range(3):
        dist.all_reduce(torch.zeros(1000))
    dist.all_reduce(torch.zeros(5), group=sub)
    say("three")
    if dist.get_rank() == 1:
        sys.stdin.read()
        return
    dist.all_reduce(torch.zeros(1000))


def quiet_helper():
    """What a program can see of the thread that answers the agent."""
    import multiprocessing
    import threading
    import warnings

    def files():
        return sorted(int(name) for name in os.listdir("/proc/self/fd") if int(name) < 900)

    def child(pipe):
        pipe.send(([t.name for t in threading.enumerate()], threading.active_count()))

    dist.init_process_group("gloo")
    say([t.name for t in threading.enumerate()], threading.active_count())
    say(files())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        here, there = multiprocessing.Pipe()
        worker = multiprocessing.get_context("fork").Process(target=child, args=(there,))
        worker.start()
        say(here.recv(), worker.join(), worker.exitcode)
        loader = torch.utils.data.DataLoader(range(4), num_workers=2)
        say([int(x) for x in loader])
    say("asked:", asked())
    dist.barrier()
    dist.destroy_process_group()
    say("asked:", asked())
    deadline = time.monotonic() + 20
    while len(os.listdir("/proc/self/task")) > 1 and time.monotonic() < deadline:
        time.sleep(0.05)  # torch's own threads end in their own time
    say([t.name for t in threading.enumerate()], len(os.listdir("/proc/self/task")), files())
    dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=0, world_size=1)
    dist.barrier()
    say("asked:", asked())
    dist.destroy_process_group()


def asked():
    """Whether the helper answers, where there is to be one."""
    import json
    import socket

    path = os.environ.get("ALLRANKS_ASK_SOCKET")
    if path is None:
        return "nobody"
    channel = socket.socket(socket.AF_UNIX)
    channel.settimeout(60)
    try:
        channel.connect(path)
    except OSError:
        return "refused"
    channel.sendall(b"counters")
    return sorted(json.loads(channel.makefile().read()))


def wrong():
    dist.init_process_group("no-such-backend")


def introspect():
    import importlib.util
    import inspect
    import pickle

    say([type(finder).__name__ for finder in sys.meta_path if type(finder).__module__ == "__main__"])
    module = dist.distributed_c10d
    for name in ("init_process_group", "destroy_process_group", "new_group"):
        function = getattr(dist, name)
        say(function is getattr(module, name), function.__name__, function.__module__, inspect.signature(function))
        say(len(inspect.getsource(function)), len(function.__doc__), pickle.loads(pickle.dumps(function)) is function)
    for name in ("torch", "torch.distributed", "torch.distributed.distributed_c10d", "no_such_module"):
        spec = importlib.util.find_spec(name)
        say(name, spec and spec.origin, spec and type(spec.loader).__name__)
    say(type(module.__loader__).__name__, sorted(vars(module.__loader__)), module.__spec__.loader is module.__loader__)


globals()[sys.argv[1]]()

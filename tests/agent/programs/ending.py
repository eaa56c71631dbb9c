# ruff: noqa
"""Ways to end beside exceptions: signals, _exit, threads, fork."""
import asyncio
import os
import signal
import sys
import threading
import time


def end():
    print("just the end")


def hard():
    sys.stdout.write("lost, never flushed")
    os._exit(9)


def aborted():
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.abort()


def interrupted():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(9)


def interrupt_class():
    class Mine(KeyboardInterrupt):
        pass

    raise Mine("subclass")


def interrupted_loop():
    async def wait():
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
        await asyncio.sleep(9)

    asyncio.run(wait())


def terminated():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(9)


def handled():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("by the handler"))
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(9)


def thread_fails():
    def fail():
        raise ValueError("in a thread")

    thread = threading.Thread(target=fail, name="T")
    thread.start()
    thread.join()


def thread_exits():
    thread = threading.Thread(target=sys.exit, args=("unheard",))
    thread.start()
    thread.join()


def thread_outlives():
    def later():
        main.join()
        time.sleep(0.05)
        print("later", threading.main_thread().is_alive(), "__file__" in globals())

    main = threading.main_thread()
    threading.Thread(target=later).start()
    raise ValueError("main ends first")


def fork_fails():
    child = os.fork()
    if child == 0:
        raise ValueError("in the child")
    print(os.waitpid(child, 0)[1], flush=True)
    raise LookupError("in the parent")


def fork_ends():
    sys.stdout.flush()
    child = os.fork()
    if child:
        print(os.waitpid(child, 0)[1])


def stdout_closed():
    sys.stdout.close()
    raise ValueError("stdout is closed")


def stderr_gone():
    sys.stderr = None
    raise ValueError("nobody sees it")


globals()[sys.argv[1]]()

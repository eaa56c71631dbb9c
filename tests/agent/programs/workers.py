# ruff: noqa
import multiprocessing
import sys


class Job:
    def __init__(self, number):
        self.number = number


class Broken(Exception):
    pass


def work(job):
    return type(job).__qualname__, job.number * 2, __name__, sys.argv[:1]


def fail(job):
    raise Broken(job.number)


if __name__ == "__main__":
    for method in sys.argv[1:]:
        context = multiprocessing.get_context(method)
        with context.Pool(2) as pool:
            print(method, pool.map(work, [Job(1), Job(2)]))
            try:
                pool.map(fail, [Job(3)])
            except Broken as error:
                print(repr(error), type(error) is Broken)
        alone = context.Process(target=fail, args=(Job(4),), name="alone")
        alone.start()
        alone.join()
        print(alone.exitcode, flush=True)

# ruff: noqa
import inspect
import linecache


class Shown:
    def method(self):
        return "source"


def shown(argument):
    return argument  # with a comment


print(inspect.getsource(shown), inspect.getsource(Shown), inspect.getfile(shown), inspect.getmodule(shown))
print(linecache.getline(__file__, 1), inspect.getsourcelines(Shown.method), shown.__code__.co_filename)

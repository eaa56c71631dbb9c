# ruff: noqa
import sys


def inner(value):
    text = "before"
    print(text)
    return 1 / value


def outer():
    try:
        inner(0)
    except ZeroDivisionError as error:
        raise ValueError("chained") from error


def context():
    try:
        outer()
    except ValueError:
        return {}["missing"]


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Outer:
    class Inner(BaseException):
        pass


def endless(depth):
    return endless(depth + 1)


def again():
    try:
        outer()
    except ValueError as error:
        raise error from None


def noted():
    error = ValueError("two\nlines \udc80")
    if hasattr(error, "add_note"):
        error.add_note("a note")
    raise error


def group():
    errors = []
    for function in (outer, context):
        try:
            function()
        except Exception as error:
            errors.append(error)
    kind = getattr(__builtins__, "ExceptionGroup", lambda text, errors: errors[1])
    raise kind("both", errors)


def exits(*texts):
    raise SystemExit(*texts)


def evaluated():
    exec(compile("def there():\n    raise LookupError('no file')\nthere()", "<made up>", "exec"))


def mute():
    raise Mute()


def nested():
    raise Outer.Inner("nested class")


def plain():
    inner(0)


def imports():
    import absent_package.part  # noqa: F401


print("start")
globals()[sys.argv[1]](*[0] if sys.argv[1] in ("inner", "endless") else [])

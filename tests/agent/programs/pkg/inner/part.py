# ruff: noqa
class Part:
    pass

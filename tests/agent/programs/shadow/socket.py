# ruff: noqa
MINE = "this socket"

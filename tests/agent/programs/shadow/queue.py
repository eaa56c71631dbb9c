# ruff: noqa
MINE = "this queue"

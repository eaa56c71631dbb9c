# ruff: noqa
VALUE = "from the package"

"""The look at nodes before ranks start: checks collect on each node and judge across all of them.

May hold: checks (one file each in `checks/`), how they are compared and judged. May not: IO. All
but `judge` runs under Python 3.8: it ships to the nodes.
"""

"""The checks, one file each; a new file here is a new check.

May hold: pure modules as `allranks.preflight.check` describes them, which run under Python 3.8 (they ship
to the nodes). May not: IO, other than through the host that `collect` is given.
"""

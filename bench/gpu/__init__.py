"""What can only be seen on a GPU, prepared so that a few minutes of one bare machine suffice: `make gpu`.

`plan.py` says what a part is and what it found, `launching.py` starts `allranks` as a user would, `parts.py` are the
parts, cheapest first, `__main__.py` keeps the report. What the ranks run is `bench/programs/gpu.py`.
"""

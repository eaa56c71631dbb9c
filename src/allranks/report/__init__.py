"""What people read: the live view, folded log lines, tables, the last words of a run.

Text in, text out; the terminal is touched only in live.py. No decisions about the run are made here.
"""

# ruff: noqa
import sys

print("main of", __package__, sys.argv, __file__)
sys.stdout.write("unflushed ")
sys.exit("text to stderr" if len(sys.argv) > 1 else 4)

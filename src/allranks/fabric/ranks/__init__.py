"""What runs in every rank. start.py is the way in; cases/ holds the tests of `sync`, pairs.py the suite `pairs`."""

"""What runs in every rank. start.py begins; cases/ holds the tests of `sync`, pairs_suite.py the suite `pairs`."""

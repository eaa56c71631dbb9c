"""The torch side of `allranks test`: runs in every rank, from these files alone (Python 3.9, torch 2.1 or newer).
__main__ reads the options; sync and bandwidth are the suites; families holds the tests; data says what is right."""

"""Side-by-side benchmarks: `make bench`, or `python -m bench [start|teardown|kill|logs|check|scale] [--quick]`."""

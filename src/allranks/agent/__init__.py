"""What ships to the nodes: relay, supervisor, agent, ranks, facts, probes.

Standard library only, Python 3.8 or newer, no import from outside this package.
"""

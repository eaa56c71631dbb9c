"""allranks: start, prove, watch, stop and explain multi-node training.

General layout: spec (what was asked) → cluster (hosts) → plan (ranks, environments, addresses) → gang
(the state machine and its controller) → node (what ships: watcher, guard, ranks) → runs (the run
directory) → diagnose (verdict) → report (text, live table). cli holds one thin file a verb.
Nothing is imported here on purpose: `import allranks` costs nothing.
"""

__version__ = "0.1.0"

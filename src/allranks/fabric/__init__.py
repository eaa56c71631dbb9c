"""Collective tests: does every rank get right results, and which node or link is slow?

metric_rows.py: what the tests write and the controller reads.
ranks/: what runs in every rank, under allranks, torchrun, srun or mpirun. Needs torch 2.1 and Python 3.8 or newer;
ships to nodes as an archive together with the rest of this package.
analysis/: what all ranks' answers come to, who is measured with whom, who is at fault, the words. Pure; runs in rank 0
and on the controller.
"""

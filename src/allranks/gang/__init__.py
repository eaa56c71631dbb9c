"""All ranks of an attempt: the state machine (pure) and the controller that carries its actions out (IO).

gang.py and states.py decide and touch nothing. controller.py, links.py, recording.py and observing.py act and decide
nothing.
"""

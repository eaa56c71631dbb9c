# ruff: noqa
import pickle


class Thing:
    def __init__(self):
        self.value = 3


data = pickle.dumps(Thing())
print(data, pickle.loads(data).value, Thing, Thing.__module__, pickle.loads(pickle.dumps(Thing)) is Thing)

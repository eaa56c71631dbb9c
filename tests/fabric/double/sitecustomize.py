"""A test double: one rank misbehaves, to prove that the checker can fail. Python imports it by its name.

TEST_DOUBLE="rank=2,test=all_gather,what=zeros|wrong_block|off_by_one|late=3|hang|exit". `every` is any test.
"""

import os
import time

NAME = "TEST_DOUBLE"
EXIT = 7
FOREVER = 86400.0


def install(environ):
    """Spoil what this rank does, if it is the one that is named, once it has its process group."""
    fields = dict(part.partition("=")[::2] for part in environ.get(NAME, "").split(","))
    if fields.get("rank") != environ.get("RANK"):
        return
    import torch.distributed as dist

    whole = dist.init_process_group

    def begin(*args, **named):
        whole(*args, **named)
        kind, _, seconds = fields["what"].partition("=")
        if kind in ("late", "hang", "exit"):
            be_absent(fields["test"], kind, float(seconds or FOREVER))
        else:
            give_wrong_data(fields["test"], kind)

    dist.init_process_group = begin


def be_absent(test, kind, seconds):
    """Be late, hang or exit, once, before the rank says that it has arrived."""
    from allranks.fabric.ranks.lab import Lab  # noqa: PLC0415 - it imports torch

    arrive = Lab.arrive
    done = []

    def behave(self, turn=0):
        if self.test == test and not done:
            done.append(True)
            if kind == "exit":
                os._exit(EXIT)
            time.sleep(seconds)
        arrive(self, turn)

    Lab.arrive = behave


def give_wrong_data(test, kind):
    """Give zeros, the next rank's data, or what is one too large."""
    from allranks.fabric.ranks import lab as lab_module  # noqa: PLC0415 - they import torch
    from allranks.fabric.ranks import payload  # noqa: PLC0415
    from allranks.fabric.ranks.cases import objects  # noqa: PLC0415

    lab_class = lab_module.Lab

    give, give_record = lab_class.give, objects.give_record

    def spoilt(lab, pattern_of):
        right, other = pattern_of(lab.rank), pattern_of((lab.rank + 1) % lab.world)
        return {"zeros": payload.ZEROS, "wrong_block": other, "off_by_one": lambda index: right(index) + 1}[kind]

    def wrong(self, pattern_of, count, dtype):
        if test in (self.test, "every"):
            return give(self, lambda rank: spoilt(self, pattern_of), count, dtype)
        return give(self, pattern_of, count, dtype)

    def wrong_record(lab, turn):
        record = give_record(lab, turn)
        if test not in (lab.test, "every"):
            return record
        texts, others = record["texts"], objects.texts_of((lab.rank + 1) % lab.world, turn)
        made = {"zeros": ["" for _ in texts], "wrong_block": others, "off_by_one": [text + "x" for text in texts]}
        return {**record, "texts": made[kind]}

    lab_class.give, objects.give_record = wrong, wrong_record


install(os.environ)

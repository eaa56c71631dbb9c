"""A test double: one rank misbehaves, to prove that the checker can fail. Python imports it by its name.

TEST_DOUBLE="rank=2,test=all_gather,what=zeros|wrong_block|off_by_one|late=3|hang|exit". `every` is any test.
"""

import os
import time

FOREVER = 86400.0


def install(rank, test, what):
    """Spoil what this rank does, if it is the one that is named, once it has its process group."""
    if rank != os.environ.get("RANK"):
        return
    import torch.distributed as dist

    whole = dist.init_process_group

    def begin(*args, **named):
        whole(*args, **named)
        spoil(test, *what.split("="))

    dist.init_process_group = begin


def spoil(test, what, seconds=FOREVER):
    """Give wrong data; or be late, hang or exit, once, before the rank says that it has arrived."""
    from allranks.fabric.ranks import lab as module  # noqa: PLC0415 - they import torch
    from allranks.fabric.ranks import payload  # noqa: PLC0415
    from allranks.fabric.ranks.cases import objects  # noqa: PLC0415

    give, give_record, arrive, ways = module.Lab.give, objects.give_record, module.Lab.arrive, ["late", "hang", "exit"]

    def behave(self, turn=0):
        if self.test == test and what in ways:
            ways.clear()
            if what == "exit":
                os._exit(7)
            time.sleep(float(seconds))
        arrive(self, turn)

    def of_test(lab):
        return test in (lab.test, "every")

    def wrong(self, pattern_of, count, dtype):
        right, other = pattern_of(self.rank), pattern_of((self.rank + 1) % self.world)
        made = {"zeros": payload.ZEROS, "wrong_block": other, "off_by_one": lambda index: right(index) + 1}
        return give(self, lambda rank: made.get(what, right) if of_test(self) else right, count, dtype)

    def wrong_record(lab, turn):
        record, others = give_record(lab, turn), objects.texts_of((lab.rank + 1) % lab.world, turn)
        texts = record["texts"]
        made = {"zeros": ["" for _ in texts], "wrong_block": others, "off_by_one": [text + "x" for text in texts]}
        return {**record, "texts": made.get(what, texts) if of_test(lab) else texts}

    module.Lab.give, module.Lab.arrive, objects.give_record = wrong, behave, wrong_record


if "TEST_DOUBLE" in os.environ:
    install(**dict(part.partition("=")[::2] for part in os.environ["TEST_DOUBLE"].split(",")))

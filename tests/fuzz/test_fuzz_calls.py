"""Fuzzer of what a rank notes of its calls: its file is the training program's, whatever that loads."""

import base64
import json
import random
import zlib
from typing import Any

import pytest
from tests.campaign import Campaign
from tests.fuzz.nasty import flipped, hostile_json, mutated

from allranks.diagnose.hangs.compared import MOST_CALLS, odd_call, read_called
from allranks.protocol.codec import decode_each, encode
from allranks.protocol.foreign import CALL_KINDS, CALLED_GROUPS, TEXT, CalledGroup, clean_called
from allranks.protocol.jsontext import DecodeError, read_json

pytestmark = pytest.mark.fuzz


def sequence(chance: random.Random) -> str:
    """Numbers of kinds, a bomb, or bytes that nothing has deflated."""
    numbers = b"".join(chance.choice((0, 1, 2, 9, 65535)).to_bytes(2, "little") for _ in range(chance.randrange(50)))
    data = chance.choice((zlib.compress(numbers), zlib.compress(bytes(1 << 20)), numbers, zlib.compress(b"odd")))
    return base64.b64encode(data).decode()


def note(chance: random.Random) -> dict[str, Any]:
    kinds = [{"what": "gloo:all_reduce", "elements": chance.randrange(3), "dtype": "Float"} for _ in range(3)]
    return {"group": "1/gloo/0/0-3-a", "first": chance.choice((1, 0, -7, 2**62)), "kinds": kinds,
            "sequence": sequence(chance)}  # fmt: skip


def test_notes_of_calls(campaign: Campaign) -> None:
    """What is kept is bounded, of the right types, and the same when it is read again; judging it ends."""
    for chance in campaign.cases(300):
        called = {}
        for rank in range(3):
            document = mutated(note(chance), chance) if chance.random() < 0.3 else note(chance)
            data = json.dumps([document]).encode()
            data = chance.choice((data, data, data, flipped(data, chance), hostile_json(chance)))
            try:
                called[rank] = clean_called(read_json(data.decode("utf-8", "replace"), 1 << 20))
            except DecodeError:
                continue
            assert len(called[rank]) <= CALLED_GROUPS
            for group in called[rank]:
                assert len(group.kinds) <= CALL_KINDS and len(group.sequence) <= TEXT
            again = decode_each(CalledGroup, json.loads(json.dumps(list(map(encode, called[rank])))))
            assert tuple(again) == called[rank]
        calls = read_called(called)
        assert all(len(of_rank) <= MOST_CALLS * CALLED_GROUPS for of_rank in calls.values())
        odd = odd_call(calls)
        assert odd is None or (odd.culprits <= {0, 1, 2} and odd.message)

"""Notes inside a rank what its torch DataLoaders hand to the program: a small hash of each sample, and its index.

    ALLRANKS_AUDIT_BATCHES   how many batches of each loader's first epoch are noted; `all` for every one
    ALLRANKS_AUDIT_FILE      JSON lines are appended here; `{rank}` in it becomes the rank, in three digits

One file that ships to the ranks: the standard library, torch at run time, Python 3.8 and later. The program must
not notice: it gets the same iterator object and the same batches, no random number is drawn, no sample is read
more than once, and whatever fails in here is swallowed. After the N batches only the end of that epoch is awaited.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import wraps
from typing import Any

ELEMENTS = 1024  # of a sample's tensor that are hashed, spread over it: an image costs no more than a text
LOADERS, EPOCHS = 8, 3  # noted at most; of later epochs the first batch alone
DEEP, WIDE = 6, 64
KEEP = 4096  # samples of one batch that are noted


# ---- a sample's hash


def digest(*parts: bytes) -> str:
    """16 hex digits; where one part ends counts."""
    found = hashlib.blake2b(digest_size=8)
    for part in parts:
        found.update(len(part).to_bytes(8, "little") + part)
    return found.hexdigest()


def is_array(value: Any) -> bool:
    """A dense tensor or a NumPy array of numbers."""
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        return False
    if hasattr(value, "layout"):
        return "strided" in str(value.layout)
    return getattr(value.dtype, "kind", "") in "biufc"


def is_whole_number(value: Any) -> bool:
    name = str(value.dtype)
    return "int" in name or "bool" in name


def thin(array: Any, start: int) -> Any:
    """A view with at most about ELEMENTS elements in the dimensions from `start` on, whatever its memory order."""
    sizes = [int(size) for size in array.shape[start:]]
    number, wide = 1, sum(size > 1 for size in sizes)
    for size in sizes:
        number *= size
    if number <= ELEMENTS:
        return array
    step = int(-(-((number / ELEMENTS) ** (1 / wide)) // 1)) | 1  # odd: falls in step with fewer patterns
    return array[(slice(None),) * start + tuple(slice(None, None, step if size > 1 else 1) for size in sizes)]


def raw(array: Any) -> bytes:
    """The bytes of an array of any type."""
    if hasattr(array, "tobytes"):
        return bytes(array.tobytes())
    import torch

    flat = array.detach().cpu().contiguous().reshape(-1)
    flat = flat.view(torch.uint8)
    try:
        return bytes(flat.numpy().tobytes())
    except Exception:  # no NumPy
        return bytes(flat.tolist())


def array_rows(array: Any, mask: Any) -> list[bytes]:
    """The bytes of each row; where a mask of the same shape says what is padding, without that."""
    count = int(array.shape[0])
    if mask is not None and tuple(mask.shape) == tuple(array.shape):
        return [raw(thin(row[keep], 0)) for row, keep in zip(array, mask != 0)]  # noqa: B905  (Python 3.8)
    data = raw(thin(array, 1))
    size = len(data) // count if count else 0
    return [data[at * size : (at + 1) * size] for at in range(count)]


def children(value: Any) -> list[tuple[str, Any]] | None:
    """The parts of a container or plain object in a fixed order; None for what is no container."""
    if isinstance(value, (list, tuple)):
        return [(str(at), part) for at, part in enumerate(value)]
    if hasattr(value, "keys") and hasattr(value, "__getitem__"):
        return sorted(((str(key), value[key]) for key in list(value.keys())), key=lambda pair: pair[0])
    if hasattr(value, "__dict__") and not callable(value) and not is_array(value):
        return sorted(vars(value).items())
    return None


def whole(value: Any, deep: int = 0) -> bytes:
    """The bytes of anything, seen as one piece."""
    if is_array(value):
        return str(tuple(value.shape)).encode() + raw(thin(value, 0))
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if isinstance(value, (str, int, float, bool, complex)) or value is None:
        return repr(value).encode("utf-8", "replace")
    deepest = DEEP if isinstance(value, (list, tuple, dict)) else 2  # objects may refer to anything
    parts = children(value) if deep < deepest else None
    if parts is None:
        return type(value).__name__.encode()
    return digest(*[name.encode() + whole(part, deep + 1) for name, part in parts[:ELEMENTS]]).encode()


def lead(value: Any) -> int | None:
    return int(value.shape[0]) if is_array(value) and len(value.shape) else None


def columns(value: Any, count: int | None, name: str = "", deep: int = 0) -> Iterator[tuple[str, Any]]:
    """The parts of a batch that have one row a sample, with their names."""
    if is_array(value):
        if len(value.shape):
            yield name, value
        return
    parts = children(value)
    if parts is None or deep > DEEP:
        return
    if isinstance(value, (list, tuple)) and value:
        plain = all(isinstance(part, (str, bytes, int, float, bool)) or part is None for part in value)
        ragged = count is not None and len(value) == count and any(lead(part) != count for part in value)
        if plain or ragged:
            yield name, list(value)
            return
    for key, part in parts[:WIDE]:
        yield from columns(part, count, name + "." + key, deep + 1)


def samples(batch: Any, count: int | None) -> tuple[list[str], list[str] | None, bool]:
    """(a hash a sample; a hash of whole numbers and texts alone; whether the batch had to be taken as one piece).

    `count` is how many samples the sampler asked for, where one did. The second list is None where all in a
    sample are fractions: random augmentation changes images, not labels."""
    found = list(columns(batch, count))
    if count is None:
        lengths = {len(part) if isinstance(part, list) else lead(part) for _, part in found}
        count = lengths.pop() if len(lengths) == 1 else None
    fitting = [(n, p) for n, p in found if count is not None and (len(p) if isinstance(p, list) else lead(p)) == count]
    if not fitting or not count:
        return [digest(whole(batch))], None, True
    mask = next((p for n, p in fitting if n.endswith("attention_mask")), None)
    rows: list[list[bytes]] = [[] for _ in range(count)]
    solid: list[list[bytes]] = [[] for _ in range(count)]
    fractions = False
    for name, part in fitting:
        exact = all(isinstance(v, (str, bytes, int)) for v in part) if isinstance(part, list) else is_whole_number(part)
        data = [whole(v) for v in part] if isinstance(part, list) else array_rows(part, mask)
        fractions = fractions or not exact
        for at, row in enumerate(data):
            rows[at] += [name.encode(), row]
            solid[at] += [row] if exact else []
    hashes = [digest(*row) for row in rows]
    if not fractions:
        return hashes, hashes, False
    return hashes, [digest(*row) for row in solid] if solid[0] else None, False


# ---- what a loader is


def identity(dataset: Any, deep: int = 0) -> str:
    """A hash of the lists, arrays and index sets that a dataset holds; "" where it holds none. Reads no sample."""
    found: list[bytes] = []
    if type(dataset).__module__.startswith("datasets."):  # Hugging Face: what it holds are views of tables
        return ""
    for name, value in sorted(getattr(dataset, "__dict__", {}).items()):
        if is_array(value) and len(value.shape):
            found += [name.encode(), whole(value[:: max(1, len(value) // 16)]), str(len(value)).encode()]
        elif isinstance(value, (list, tuple, range)) and len(value) > 1:
            step = max(1, len(value) // 16)
            some = [v for v in list(value[::step]) if isinstance(v, (str, int, float)) or is_array(v)]
            texts = [b"/".join(v.encode("utf-8", "replace").split(b"/")[-2:]) if isinstance(v, str) else whole(v)
                     for v in some]  # fmt: skip
            found += [name.encode(), str(len(value)).encode(), *texts] if some else []
        elif deep < 3 and hasattr(value, "__getitem__") and hasattr(value, "__dict__") and hasattr(value, "__len__"):
            found.append(identity(value, deep + 1).encode())
    return digest(*found) if any(found) else ""


def safely(function: Any, value: Any) -> Any:
    """What the function gives, or None where a dataset's own code raises."""
    try:
        return function(value)
    except Exception:
        return None


def size_of(value: Any) -> int | None:
    found = safely(len, value)
    return found if isinstance(found, int) else None


def attribute(names: tuple[str, ...], *owners: Any) -> Any:
    """The first of these attributes that one of the owners has, if it is a plain value."""
    for owner in owners:
        for name in names:
            value = getattr(owner, name, None)
            if isinstance(value, (bool, int, float, str)):
                return value
    return None


def samplers(loader: Any) -> list[Any]:
    """The loader's batch sampler and sampler, and those inside them, from the outermost on."""
    found: list[Any] = []
    waiting = [getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None)]
    while waiting and len(found) < 8:
        one = waiting.pop(0)
        if one is not None and not any(one is other for other in found):
            found.append(one)
            waiting += [getattr(one, name, None) for name in ("batch_sampler", "sampler")]
    return found


def shuffles(dataset: Any, inner: list[Any]) -> Any:
    """What the samplers say; of a Hugging Face stream whether it was told to shuffle; else None."""
    found = attribute(("shuffle",), *inner)
    if found is None and getattr(dataset, "_shuffling", None) is not None:  # datasets before 5
        return True
    stages = [getattr(dataset, "_ex_iterable", None)]
    if found is not None or stages[0] is None:
        return found
    for at in range(32):  # since 5 each stage of a stream holds the one before it
        if at < len(stages):
            more = getattr(stages[at], "ex_iterables", None)
            stages += [getattr(stages[at], "ex_iterable", None), *(more if isinstance(more, list) else ())]
    return any("Shuffl" in type(stage).__name__ for stage in stages)


def describe(loader: Any) -> dict[str, Any]:
    """The facts of a loader that the judge compares."""
    dataset, inner = loader.dataset, samplers(loader)
    sampler = inner[-1] if inner else None
    iterable = bool(getattr(loader, "_dataset_kind", 0))
    return {
        "class": type(loader).__name__, "module": type(loader).__module__, "dataset": type(dataset).__name__,
        "style": "iterable" if iterable else "map",
        "loader_len": None if iterable else size_of(loader),  # asking an iterable one makes torch warn later
        "dataset_len": size_of(dataset), "identity": safely(identity, dataset),
        "batch": getattr(loader, "batch_size", None) or attribute(("batch_size",), *inner),
        "drop_last": bool(getattr(loader, "drop_last", False) or attribute(("drop_last",), *inner)),
        "workers": loader.num_workers, "sampler": type(sampler).__name__ if sampler is not None else "",
        "sampler_len": None if iterable else size_of(sampler),
        "replicas": attribute(("num_replicas", "num_processes"), *inner),
        "sampler_rank": attribute(("rank", "process_index"), *inner),
        "shuffle": shuffles(dataset, inner), "replacement": attribute(("replacement",), *inner),
        "has_set_epoch": any(hasattr(one, "set_epoch") for one in [*inner, dataset]),
    }  # fmt: skip


# ---- the notes


class Notes:
    """What one process notes: its rank, its file, its loaders."""

    def __init__(self, path: str, limit: int | None) -> None:
        self.path, self.limit, self.pid = path, limit, os.getpid()
        self.loaders: list[tuple[Any, int]] = []  # weak reference, epochs begun
        self.current: Epoch | None = None
        self.spent = 0.0  # seconds in here

    def write(self, kind: str, **more: Any) -> None:
        """One line; a disk that is full loses it."""
        line = json.dumps({"kind": kind, "rank": number("RANK"), **more}, default=str) + "\n"
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def begin(self, loader: Any) -> Epoch | None:
        """A new epoch of a loader, or None where there is nothing left to note."""
        if os.getpid() != self.pid:  # a forked worker
            return None
        for at, (known, epochs) in enumerate(self.loaders):
            if known() is loader:
                self.loaders[at] = (known, epochs + 1)
                return Epoch(self, loader, at, epochs) if epochs < EPOCHS else None
        if len(self.loaders) >= LOADERS:
            return None
        self.loaders.append((weakref.ref(loader), 1))
        epoch = Epoch(self, loader, len(self.loaders) - 1, 0)
        self.write("data-loader", loader=epoch.at, **describe(loader), **places())
        return epoch


class Epoch:
    """One pass over a loader."""

    def __init__(self, notes: Notes, loader: Any, at: int, number: int) -> None:
        self.notes, self.at, self.number, self.batches = notes, at, number, 0
        self.limit = notes.limit if number == 0 else 1
        self.asked: list[Any] | None = [] if getattr(loader, "in_order", True) else None
        dataset, inner = loader.dataset, samplers(loader)
        self.set_to = attribute(("epoch", "_epoch"), *inner, dataset)

    def took(self, index: Any) -> None:
        """The sampler's next index or list of them; workers are asked ahead of time, and answer in order."""
        if self.asked is not None:
            self.asked.append(index)

    def batch(self, batch: Any) -> bool:
        """Notes a batch; says whether that was the last to note."""
        began = time.perf_counter()
        asked = self.asked.pop(0) if self.asked else None
        many = isinstance(asked, (list, tuple)) and len(asked) > 0
        index = [as_index(one) for one in (asked if isinstance(asked, (list, tuple)) and asked else [asked])]
        known = all(one is not None for one in index)
        hashes, parts, one_piece = samples(batch, len(index) if many and known else None)
        if asked is not None and known and not many:  # batch_size=None: the item is the sample
            hashes, parts, one_piece = [digest(whole(batch))], None, False
        row: dict[str, Any] = {"loader": self.at, "epoch": self.number, "batch": self.batches}
        if self.number == 0:
            row.update(n=len(index) if known else len(hashes), one_piece=one_piece, grad=grad_enabled())
            row.update(index=index[:KEEP] if known else None, hash=hashes[:KEEP], part=parts and parts[:KEEP])
            row.update(part="hash" if parts == hashes else row["part"])  # nothing in it is a fraction
            self.notes.write("data-batch", **row)
        if self.batches == 0:
            order = digest(repr(index if known else hashes).encode())
            self.notes.write("data-epoch", loader=self.at, epoch=self.number, set_to=self.set_to, order=order)
        self.batches += 1
        self.notes.spent += time.perf_counter() - began
        return self.limit is not None and self.batches >= self.limit

    def end(self, batches: int) -> None:
        """The loader had no more."""
        spent = round(self.notes.spent, 6)
        self.notes.write("data-end", loader=self.at, epoch=self.number, batches=batches, spent=spent)


def as_index(value: Any) -> Any:
    """A sampler's index as a number or text; None where the dataset is iterable."""
    if isinstance(value, (int, str)) or value is None:
        return value
    item = getattr(value, "item", None)
    return item() if callable(item) else repr(value)


def grad_enabled() -> bool:
    torch = sys.modules.get("torch")
    return bool(torch.is_grad_enabled()) if torch is not None else True


def number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else None


def places() -> dict[str, int | None]:
    return {
        "local_rank": number("LOCAL_RANK"), "world": number("WORLD_SIZE"),
        "node": number("GROUP_RANK") if number("GROUP_RANK") is not None else number("NODE_RANK"),
    }  # fmt: skip


# ---- torch


def attend(loader: Any, known: Any) -> None:
    """The runner calls this when torch's loader module is about to be loaded: patches it once it has run."""
    execute = loader.exec_module

    def exec_module(module: Any) -> None:
        del loader.exec_module  # the class's own is back
        execute(module)
        if os.getpid() == known.pid:
            install(module)

    loader.exec_module = exec_module


def install(module: Any = None) -> bool:
    """Patches DataLoader (in `module`, by default torch's own); says whether it did.

    Off, and without a trace, unless both variables are set."""
    path, text = os.environ.get("ALLRANKS_AUDIT_FILE", ""), os.environ.get("ALLRANKS_AUDIT_BATCHES", "")
    if not path or not (text == "all" or (text.isdigit() and int(text) > 0)):
        return False
    try:
        if module is None:
            import torch.utils.data.dataloader as module
        rank = number("RANK")
        path = path.replace("{rank}", f"{rank:03d}" if rank is not None else "none")  # one setting for all ranks
        notes = Notes(path, None if text == "all" else int(text))
        patch(module.DataLoader, module._BaseDataLoaderIter, notes)
        notes.write("data-rank", limit=notes.limit, **places())
        return True
    except Exception:
        return False


def patch(loader_class: Any, iterator_class: Any, notes: Notes) -> Callable[[], None]:
    """Wraps __iter__ of loaders and _next_index of their iterators; the function given back undoes that."""
    iterate, next_index = loader_class.__iter__, iterator_class._next_index

    @wraps(iterate)
    def __iter__(self: Any) -> Any:
        try:
            epoch = notes.begin(self)
        except Exception:
            epoch = None
        if epoch is None:
            return iterate(self)
        notes.current = epoch  # multi-worker iterators ask for indices while they are made
        try:
            found = iterate(self)
        finally:
            notes.current = None
        follow(found, epoch, iterator_class)
        return found

    @wraps(next_index)
    def _next_index(self: Any) -> Any:
        index = next_index(self)
        epoch = notes.current or self.__dict__.get("_allranks_epoch")
        if epoch is not None:
            epoch.took(index)
        return index

    def undo() -> None:
        loader_class.__iter__, iterator_class._next_index = iterate, next_index

    loader_class.__iter__, iterator_class._next_index = __iter__, _next_index
    return undo


def follow(found: Any, epoch: Epoch, iterator_class: Any) -> None:
    """Gives an iterator a class that notes; it is the same object, and gets its own class back."""
    try:
        own = type(found)
        if isinstance(found, iterator_class):
            while "_allranks_own" in own.__dict__:  # a persistent iterator that was left half way
                own = own._allranks_own
            found._allranks_epoch = epoch
            found.__class__ = noting(own)
    except Exception:
        pass


def noting(own: Any) -> Any:
    """A subclass under the same name whose __next__ notes; after the last batch to note, one that awaits the end."""

    def finish(self: Any, epoch: Epoch, last: int) -> None:
        self.__dict__.pop("_allranks_epoch", None)
        self.__class__ = own
        with suppress(Exception):
            epoch.end(last)

    def __next__(self: Any) -> Any:
        epoch = self._allranks_epoch
        try:
            batch = own.__next__(self)
        except StopIteration:
            finish(self, epoch, epoch.batches)
            raise
        try:
            over = epoch.batch(batch)
        except Exception:
            over = True
        if over:
            self.__dict__.pop("_allranks_epoch", None)
            if epoch.number:
                self.__class__ = own
            else:
                self.__class__, self._allranks_last = awaiting, epoch
        return batch

    def until_end(self: Any) -> Any:
        try:
            return own.__next__(self)
        except StopIteration:
            finish(self, self.__dict__.pop("_allranks_last"), self._num_yielded)
            raise

    names = {"__module__": own.__module__, "__qualname__": own.__qualname__, "__doc__": own.__doc__}
    awaiting = type(own.__name__, (own,), {**names, "_allranks_own": own, "__next__": until_end})
    return type(own.__name__, (own,), {**names, "_allranks_own": own, "__next__": __next__})

"""Note inside a rank what its torch DataLoaders hand to the program: a small hash of each sample, and its index.

    ALLRANKS_AUDIT_BATCHES   how many batches of each loader's first epoch are noted; `all` for every one
    ALLRANKS_AUDIT_FILE      JSON lines are appended here; `{rank}` in it becomes the rank, in three digits

One file that ships to the ranks: the standard library, torch at run time, Python 3.8 and later. The program must
not notice: it gets the same iterator object and the same batches, no random number is drawn, no sample is read
more than once, and whatever fails in here is swallowed. After the N batches only the end of that epoch is awaited.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what is used of objects that are the program's
    from collections.abc import Sequence
    from types import ModuleType
    from typing import Any, Protocol, TypeVar

    from typing_extensions import TypeIs

    Result = TypeVar("Result")

    class Array(Protocol):
        """A tensor, or an array of NumPy."""

        @property
        def dtype(self) -> object:
            """Its type."""

        @property
        def shape(self) -> Sequence[int]:
            """Its sizes."""

        def __len__(self) -> int: ...
        def __iter__(self) -> Iterator[Array]: ...
        def __getitem__(self, key: object) -> Array: ...

    class Loader(Protocol):
        """A DataLoader of torch."""

        dataset: object
        num_workers: object

    class Batches(Protocol):
        """An iterator of a DataLoader, with what is set on it here."""

        _num_yielded: int
        _allranks_epoch: Epoch
        _allranks_last: Epoch

        def __next__(self) -> object: ...


ELEMENTS = 1024  # of a sample's tensor that are hashed, spread over it: an image costs no more than a text
LOADERS = 8  # noted at most
EPOCHS = 3  # noted at most; of later epochs the first batch alone
DEEP = 6  # containers in containers
DEEP_OBJECTS = 2  # objects may refer to anything
WIDE = 64  # parts of a batch
HELD = 16  # elements of what a dataset holds
SAMPLERS = 8  # inside each other
STAGES = 32  # of a stream
PADDING: object = 0  # in an attention mask
KEEP = 4096  # samples of one batch that are noted


# ---- a sample's hash


def digest(*parts: bytes) -> str:
    """Give 16 hex digits; where one part ends counts."""
    state = hashlib.blake2b(digest_size=8)
    for part in parts:
        state.update(len(part).to_bytes(8, "little") + part)
    return state.hexdigest()


def is_array(value: object) -> TypeIs[Array]:
    """Tell whether this is a dense tensor or a NumPy array of numbers."""
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        return False
    if hasattr(value, "layout"):
        return "strided" in str(value.layout)
    return getattr(value.dtype, "kind", "") in "biufc"


def is_exact(values: list[object] | Array) -> bool:
    """Tell whether an array or a list has no fractions."""
    if isinstance(values, list):
        return all(isinstance(value, (str, bytes, int)) for value in values)
    return "int" in str(values.dtype) or "bool" in str(values.dtype)


def thin(array: Array, start: int) -> Array:
    """Give a view with at most about ELEMENTS elements in the dimensions from `start` on, whatever its memory order."""
    sizes = [int(size) for size in array.shape[start:]]
    number = 1
    for size in sizes:
        number *= size
    if number <= ELEMENTS:
        return array
    dimensions = sum(size > 1 for size in sizes)
    step = math.ceil((number / ELEMENTS) ** (1 / dimensions)) | 1  # odd: falls in step with fewer patterns
    every = [slice(None, None, step if size > 1 else 1) for size in sizes]
    return array[(slice(None),) * start + tuple(every)]


def raw(array: Array) -> bytes:
    """Give the bytes of an array of any type."""
    if hasattr(array, "tobytes"):
        return bytes(array.tobytes())
    import torch  # late: a program without it has no such array

    tensor: torch.Tensor = array  # type: ignore[assignment]  # whatever is not of NumPy
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    try:
        return bytes(flat.numpy().tobytes())
    except Exception:  # no NumPy
        return bytes(flat.tolist())


def array_rows(array: Array, mask: Array | None) -> list[bytes]:
    """Give the bytes of each row; where a mask of the same shape says what is padding, without that."""
    count = int(array.shape[0])
    if mask is not None and tuple(mask.shape) == tuple(array.shape):
        return [raw(thin(row[keep != PADDING], 0)) for row, keep in zip(array, mask)]  # noqa: B905  (Python 3.8)
    data = raw(thin(array, 1))
    size = len(data) // count if count else 0
    return [data[at * size : (at + 1) * size] for at in range(count)]


def children(value: object) -> list[tuple[str, object]] | None:
    """List the parts of a container or plain object in a fixed order; None for anything else."""
    if isinstance(value, (list, tuple)):
        return [(str(at), part) for at, part in enumerate(value)]
    if hasattr(value, "keys") and hasattr(value, "__getitem__"):
        return sorted(((str(key), value[key]) for key in list(value.keys())), key=lambda pair: pair[0])
    if hasattr(value, "__dict__") and not callable(value) and not is_array(value):
        return sorted(vars(value).items())
    return None


def content(value: object, deep: int = 0) -> bytes:
    """Give the bytes of anything, seen as one piece."""
    if is_array(value):
        return str(tuple(value.shape)).encode() + raw(thin(value, 0))
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if isinstance(value, (str, int, float, bool, complex)) or value is None:
        return repr(value).encode("utf-8", "replace")
    deepest = DEEP if isinstance(value, (list, tuple, dict)) else DEEP_OBJECTS
    parts = children(value) if deep < deepest else None
    if parts is None:
        return type(value).__name__.encode()
    return digest(*[name.encode() + content(part, deep + 1) for name, part in parts[:ELEMENTS]]).encode()


def length_of(values: object) -> int | None:
    """Count the rows of a list or array; None for what has none."""
    if isinstance(values, list):
        return len(values)
    if is_array(values) and len(values.shape):
        return int(values.shape[0])
    return None


def columns(
    value: object, count: int | None, name: str = "", deep: int = 0
) -> Iterator[tuple[str, list[object] | Array]]:
    """Yield the parts of a batch that have one row a sample, with their names."""
    if is_array(value):
        if len(value.shape):
            yield name, value
        return
    parts = children(value)
    if parts is None or deep > DEEP:
        return
    if isinstance(value, (list, tuple)) and value:
        plain = all(isinstance(part, (str, bytes, int, float, bool)) or part is None for part in value)
        arrays = [None if isinstance(part, list) else length_of(part) for part in value]
        ragged = len(value) == count and any(length != count for length in arrays)
        if plain or ragged:
            yield name, list(value)
            return
    for key, part in parts[:WIDE]:
        yield from columns(part, count, name + "." + key, deep + 1)


def hash_samples(batch: object, count: int | None) -> tuple[list[str], list[str] | None]:
    """Give (a hash a sample; a hash of its exact numbers and texts alone); of a batch in one piece a single hash.

    `count` is how many samples the sampler asked for, where one did. The second list is None where all in a
    sample are fractions: random augmentation changes images, not labels."""
    named = list(columns(batch, count))
    if count is None:
        lengths = {length_of(values) for _, values in named}
        count = lengths.pop() if len(lengths) == 1 else None
    fitting = [(name, values) for name, values in named if length_of(values) == count]
    if not fitting or not count:
        return [digest(content(batch))], None
    masks = (values for name, values in fitting if name.endswith("attention_mask"))
    mask = next((values for values in masks if not isinstance(values, list)), None)
    rows: list[list[bytes]] = [[] for _ in range(count)]
    exact_rows: list[list[bytes]] = [[] for _ in range(count)]
    fractions = False
    for name, values in fitting:
        exact = is_exact(values)
        fractions = fractions or not exact
        data = [content(value) for value in values] if isinstance(values, list) else array_rows(values, mask)
        for at, row in enumerate(data):
            rows[at] += [name.encode(), row]
            if exact:
                exact_rows[at].append(row)
    hashes = [digest(*row) for row in rows]
    if not fractions:
        return hashes, hashes
    return hashes, [digest(*row) for row in exact_rows] if exact_rows[0] else None


# ---- what a loader is


def identity(dataset: object, deep: int = 0) -> str:
    """Hash the lists, arrays and index sets that a dataset holds; "" where it holds none. Reads no sample."""
    parts: list[bytes] = []
    if type(dataset).__module__.startswith("datasets."):  # Hugging Face: what it holds are views of tables
        return ""
    for name, value in sorted(getattr(dataset, "__dict__", {}).items()):
        if is_array(value) and len(value.shape):
            parts += [name.encode(), content(value[:: max(1, len(value) // HELD)]), str(len(value)).encode()]
        elif isinstance(value, (list, tuple, range)) and len(value) > 1:
            elements = value[:: max(1, len(value) // HELD)]
            held = [held_content(one) for one in elements if isinstance(one, (str, int, float)) or is_array(one)]
            if held:
                parts += [name.encode(), str(len(value)).encode(), *held]
        elif deep < 3 and all(hasattr(value, member) for member in ("__getitem__", "__dict__", "__len__")):
            parts.append(identity(value, deep + 1).encode())
    return digest(*parts) if any(parts) else ""


def held_content(element: object) -> bytes:
    """Give the bytes of an element; of a path the last two names: nodes may have other roots."""
    if isinstance(element, str):
        return b"/".join(element.encode("utf-8", "replace").split(b"/")[-2:])
    return content(element)


def safely(function: Callable[[Any], Result], value: object) -> Result | None:
    """Give what the function gives, or None where a dataset's own code raises."""
    try:
        return function(value)
    except Exception:
        return None


def integer(value: object) -> int | None:
    """Give an integer, or None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def attribute(names: tuple[str, ...], *owners: object) -> bool | int | float | str | None:
    """Give the first of these attributes that one of the owners has, if it is a plain value."""
    for owner in owners:
        for name in names:
            value = getattr(owner, name, None)
            if isinstance(value, (bool, int, float, str)):
                return value
    return None


def samplers(loader: Loader) -> list[object]:
    """List the loader's batch sampler and sampler, and those inside them, from the outermost on."""
    names = ("batch_sampler", "sampler")
    inner: list[object] = []
    waiting = [getattr(loader, name, None) for name in names]
    while waiting and len(inner) < SAMPLERS:
        sampler = waiting.pop(0)
        if sampler is not None and not any(sampler is other for other in inner):
            inner.append(sampler)
            waiting += [getattr(sampler, name, None) for name in names]
    return inner


def shuffles(dataset: object, inner: list[object]) -> bool | None:
    """Give what the samplers say; of a Hugging Face stream whether it was asked to shuffle; else None."""
    shuffle = attribute(("shuffle",), *inner)
    if shuffle is not None:
        return bool(shuffle)
    if getattr(dataset, "_shuffling", None) is not None:  # datasets before 5
        return True
    stages = [getattr(dataset, "_ex_iterable", None)]
    if stages[0] is None:
        return None
    for stage in stages:  # since 5 each stage of a stream holds the one before it
        more = getattr(stage, "ex_iterables", None)
        stages += [getattr(stage, "ex_iterable", None), *(more if isinstance(more, list) else ())]
        if len(stages) > STAGES:
            break
    return any("Shuffl" in type(stage).__name__ for stage in stages)


def describe(loader: Loader) -> dict[str, object]:
    """Give the facts of a loader that the judge compares."""
    dataset = loader.dataset
    inner = samplers(loader)
    iterable = bool(getattr(loader, "_dataset_kind", 0))
    return {
        "class": type(loader).__name__,
        "module": type(loader).__module__,
        "dataset": type(dataset).__name__,
        "style": "iterable" if iterable else "map",
        "loader_len": None if iterable else safely(len, loader),  # asking an iterable one makes torch warn later
        "dataset_len": safely(len, dataset),
        "identity": safely(identity, dataset),
        "batch": integer(getattr(loader, "batch_size", None) or attribute(("batch_size",), *inner)),
        "drop_last": bool(getattr(loader, "drop_last", False) or attribute(("drop_last",), *inner)),
        "workers": integer(loader.num_workers),
        "sampler": type(inner[-1]).__name__ if inner else "",
        "sampler_len": None if iterable or not inner else safely(len, inner[-1]),
        "replicas": integer(attribute(("num_replicas", "num_processes"), *inner)),
        "shuffle": shuffles(dataset, inner),
        "replacement": bool(attribute(("replacement",), *inner)),
        "has_set_epoch": any(hasattr(owner, "set_epoch") for owner in [*inner, dataset]),
    }


# ---- the notes


class KnownLoader:
    """A loader that was read, and how many epochs of it have begun."""

    def __init__(self, loader: Loader) -> None:
        self.reference = weakref.ref(loader)
        self.epochs = 0


class Notes:
    """What one process notes: its rank, its file, its loaders."""

    def __init__(self, path: str, limit: int | None) -> None:
        self.path = path
        self.limit = limit
        self.pid = os.getpid()
        self.loaders: list[KnownLoader] = []
        self.current: Epoch | None = None

    def write(self, kind: str, **more: object) -> None:
        """Write one line; a disk that is full loses it."""
        line = json.dumps({"kind": kind, "rank": variable("RANK"), **more}, default=str) + "\n"
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def begin(self, loader: Loader) -> Epoch | None:
        """Begin an epoch of a loader; None where there is nothing left to note."""
        if os.getpid() != self.pid:  # a forked worker
            return None
        at = self.number_of(loader)
        if at is None:
            return None
        known = self.loaders[at]
        known.epochs += 1
        if known.epochs > EPOCHS:
            return None
        return Epoch(self, loader, at, known.epochs - 1)

    def number_of(self, loader: Loader) -> int | None:
        """Give the number of a loader, which is noted when it is first seen; None for one too many."""
        for at, known in enumerate(self.loaders):
            if known.reference() is loader:
                return at
        at = len(self.loaders)
        if at >= LOADERS:
            return None
        self.loaders.append(KnownLoader(loader))
        self.write("data-loader", loader=at, **describe(loader))
        return at


class Epoch:
    """One pass over a loader."""

    def __init__(self, notes: Notes, loader: Loader, at: int, number: int) -> None:
        self.notes = notes
        self.at = at
        self.number = number
        self.batches = 0
        self.limit = notes.limit if number == 0 else 1
        self.asked: list[object] | None = [] if getattr(loader, "in_order", True) else None
        self.set_to = attribute(("epoch", "_epoch"), *samplers(loader), loader.dataset)

    def took(self, index: object) -> None:
        """Take the sampler's next index or list of them; workers are asked ahead of time, and answer in order."""
        if self.asked is not None:
            self.asked.append(index)

    def batch(self, batch: object) -> bool:
        """Note a batch; tell whether that was the last to note."""
        asked = self.asked.pop(0) if self.asked else None
        indices = list(asked) if isinstance(asked, (list, tuple)) else []
        index = [as_index(one) for one in indices or [asked]]
        indexed = None not in index
        if indexed and not indices:  # batch_size=None: the item is the sample
            hashes: list[str] = [digest(content(batch))]
            exact: list[str] | None = None
        else:
            hashes, exact = hash_samples(batch, len(index) if indexed else None)
        if self.number == 0:
            self.notes.write(
                "data-batch",
                loader=self.at,
                n=len(index) if indexed else len(hashes),
                grad=grad_enabled(),
                index=index[:KEEP] if indexed else None,
                hash=hashes[:KEEP],
                part="hash" if exact == hashes else exact and exact[:KEEP],  # nothing in it is a fraction
            )
        if self.batches == 0:
            order = digest(repr(index if indexed else hashes).encode())
            self.notes.write("data-epoch", loader=self.at, epoch=self.number, set_to=self.set_to, order=order)
        self.batches += 1
        return self.limit is not None and self.batches >= self.limit

    def end(self, batches: int) -> None:
        """Note that the loader had no more."""
        self.notes.write("data-end", loader=self.at, epoch=self.number, batches=batches)


def as_index(value: object) -> int | str | None:
    """Give a sampler's index as a number or text; None where the dataset is iterable."""
    item = getattr(value, "item", None)
    if callable(item):
        value = item()
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str) or value is None:
        return value
    return repr(value)


def grad_enabled() -> bool:
    """Tell whether the program trains."""
    torch = sys.modules.get("torch")
    return torch is None or bool(torch.is_grad_enabled())


def variable(name: str) -> int | None:
    """Read a number of the environment."""
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else None


# ---- torch


def attend(loader: Any, notes_of: Any) -> None:
    """Patch torch's loader module once it has run; the runner calls this when the module is about to be loaded."""
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module  # the class's own is back
        execute(module)
        if os.getpid() == notes_of.pid:
            install(module)

    loader.exec_module = exec_module


def install(module: ModuleType | None = None) -> bool:
    """Patch DataLoader (in `module`, by default torch's own); tell whether it was done.

    Off, and without a trace, unless both variables are set."""
    path = os.environ.get("ALLRANKS_AUDIT_FILE", "")
    text = os.environ.get("ALLRANKS_AUDIT_BATCHES", "")
    if not path or not (text == "all" or (text.isdecimal() and int(text) > 0)):
        return False
    try:
        if module is None:
            module = importlib.import_module("torch.utils.data.dataloader")
        rank = variable("RANK")
        path = path.replace("{rank}", "none" if rank is None else f"{rank:03d}")  # one setting for all ranks
        notes = Notes(path, None if text == "all" else int(text))
        patch(module.DataLoader, module._BaseDataLoaderIter, notes)
        notes.write("data-rank")
        return True
    except Exception:
        return False


def patch(loader_class: Any, iterator_class: Any, notes: Notes) -> Callable[[], None]:
    """Wrap __iter__ of loaders and _next_index of their iterators; give a function that undoes that."""
    iterate = loader_class.__iter__
    next_index = iterator_class._next_index

    @wraps(iterate)
    def __iter__(self: Loader) -> object:
        try:
            epoch = notes.begin(self)
        except Exception:
            epoch = None
        if epoch is None:
            return iterate(self)
        notes.current = epoch  # multi-worker iterators ask for indices while they are made
        try:
            iterator = iterate(self)
        finally:
            notes.current = None
        follow(iterator, epoch, iterator_class)
        return iterator

    @wraps(next_index)
    def _next_index(self: Batches) -> object:
        index = next_index(self)
        epoch = notes.current or self.__dict__.get("_allranks_epoch")
        if epoch is not None:
            epoch.took(index)
        return index

    def undo() -> None:
        loader_class.__iter__ = iterate
        iterator_class._next_index = next_index

    loader_class.__iter__ = __iter__
    iterator_class._next_index = _next_index
    return undo


def follow(iterator: Any, epoch: Epoch, iterator_class: Any) -> None:
    """Give an iterator a class that notes; it is the same object, and gets its first class back."""
    with suppress(Exception):
        original = type(iterator)
        if isinstance(iterator, iterator_class):
            while "_allranks_original" in original.__dict__:  # a persistent iterator that was left half way
                original = original._allranks_original
            iterator._allranks_epoch = epoch
            iterator.__class__ = noting(original)


def noting(original: type[Batches]) -> type[Batches]:
    """Make a subclass under the same name whose __next__ notes; after the last batch, one that awaits the end."""

    def finish(self: Batches, batches: int) -> None:
        epoch = self.__dict__.pop("_allranks_epoch", None) or self.__dict__.pop("_allranks_last")
        self.__class__ = original
        with suppress(Exception):
            epoch.end(batches)

    def __next__(self: Batches) -> object:
        epoch = self._allranks_epoch
        try:
            batch = original.__next__(self)
        except StopIteration:
            finish(self, epoch.batches)
            raise
        try:
            over = epoch.batch(batch)
        except Exception:
            over = True
        if over:
            del self._allranks_epoch
            self.__class__ = original
            if not epoch.number:
                self._allranks_last = epoch
                self.__class__ = awaiting
        return batch

    def until_end(self: Batches) -> object:
        try:
            return original.__next__(self)
        except StopIteration:
            finish(self, self._num_yielded)
            raise

    def subclass(next_: Callable[[Batches], object]) -> Any:
        names = {"__module__": original.__module__, "__qualname__": original.__qualname__, "__doc__": original.__doc__}
        return type(original.__name__, (original,), {**names, "_allranks_original": original, "__next__": next_})

    awaiting: type[Batches] = subclass(until_end)
    first: type[Batches] = subclass(__next__)
    return first

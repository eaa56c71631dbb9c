"""Turn records into JSON values and back, by their annotations (pure).

A record is a NamedTuple (of `records`, which cost least, or of typing) or a dataclass. A field's JSON name is its own,
without a trailing underscore. Known annotations: str, int, float, bool, Json (any value, taken as it is), Optional and
Union of these, Literal, an Enum (by value), Tuple, List, FrozenSet, Dict with str or int keys, and records. A bound of
a field stands in its annotation: `Annotated[int, within(0, 65535)]`. It holds for whoever sends.

Decoding happens once, at the edge: the text comes from `jsontext.read_json`, which bounds size, depth and numbers.
`decode` then checks every value and says where the first wrong one stands:
`$.ranks[2].pid: expected an integer, got "abc"`.
Fields that a record does not have are ignored, absent ones take their defaults.
"""

from __future__ import annotations  # to evaluate those below takes a fifth of the import

import enum
import itertools
import json
import re
import typing
from collections import abc
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    FrozenSet,
    Generic,
    Hashable,
    Iterable,
    List,
    Mapping,
    Optional,
    Sequence,
    Set,
    Tuple,
    Type,
    TypeVar,
    Union,
)

from .jsontext import DIGITS, Json, JsonObject
from .jsontext import DecodeError as DecodeError  # for those who decode
from .jsontext import read_json as read_json
from .jsontext import write_json as write_json
from .records import NamedTuple

if TYPE_CHECKING:
    from typing import Annotated as Annotated
else:

    class Annotated:
        """typing's of Python 3.9, read by `_decoder`."""

        def __class_getitem__(cls, parts):
            """Give an annotation with its bound."""
            return Bounded(*parts)


Record = TypeVar("Record")
Item = TypeVar("Item")
Key = TypeVar("Key")
Container = TypeVar("Container")
Member = TypeVar("Member", bound=enum.Enum)
Decoder = Callable[[Json], Record]
FieldDecoder = Decoder[Any]  # of an annotation
Annotation = Union[type, Hashable]  # a class, or a form of typing such as Optional[int]

LARGEST = 2**63 - 1  # of an integer: what the frames and every file offset can hold
SCHEMA = 1  # of every JSON document that users get
SHOWN = 60  # characters of a wrong value in a message


# -- bounds --------------------------------------------------------------------------------------------


class Bound(NamedTuple):
    """What a value must be, in words."""

    words: str
    holds: Callable[[Any], bool]


class Bounded:
    """An annotation with a bound. It can be called as typing of Python 3.8 asks for that."""

    def __init__(self, kind: Annotation, bound: Bound) -> None:
        self.kind = kind
        self.bound = bound

    def __call__(self) -> None:
        """Raise TypeError."""
        raise TypeError("an annotation is not a value")


def within(least: float, most: float) -> Bound:
    """Bound a number."""
    return Bound("a number from %s to %s" % (least, most), lambda number: least <= number <= most)


def at_most(count: int) -> Bound:
    """Bound the number of characters or elements."""
    return Bound("at most %d" % count, lambda items: len(items) <= count)


def like(pattern: str, words: str) -> Bound:
    """Bound a text by a pattern for all of it."""
    return Bound(words, lambda text: re.fullmatch(pattern, text) is not None)


def one_of(*choices: str) -> Bound:
    """Bound a text to a few."""
    return Bound("one of " + ", ".join(map(json.dumps, choices)), lambda text: text in choices)


# -- decoding ------------------------------------------------------------------------------------------

_decoders: Dict[Tuple[Annotation, bool], FieldDecoder] = {}
_needed: Dict[type, FrozenSet[str]] = {}
_spread: Dict[type, str] = {}
_fields_of: Dict[Tuple[type, bool], List["_Field"]] = {}


class _Misfit(Exception):
    """A value that a decoder refuses; each container that it leaves adds its part of the place."""

    def __init__(self, words: str) -> None:
        super().__init__(words)
        self.words = words
        self.place = ""

    def inside(self, part: str) -> "_Misfit":
        self.place = part + self.place
        return self


def decode(kind: Type[Record], value: Json, path: str = "$") -> Record:
    """Make a record (or any annotated type) of a JSON value; raise DecodeError that names the place."""
    decoder: Decoder[Record] = _decoder(kind)
    try:
        return decoder(value)
    except _Misfit as misfit:
        raise DecodeError("%s%s: %s" % (path, misfit.place, misfit.words)) from None


def decode_each(kind: Type[Record], values: Json) -> List[Record]:
    """Make records of the elements of an array that fit; leave out the others, and all of any other value."""
    decoder: Decoder[Record] = _decoder(kind)
    if not isinstance(values, (list, tuple)):
        return []
    return _fitting(decoder, values)


def decode_parts(kind: Type[Record], value: Json) -> Record:
    """Make a record of what fits: a field that does not, here or in a record inside, is taken for an absent one.

    So it takes its default. What has none, or is `needed`, leaves its record out: of an array, of an object, of the
    field that it stands in. Every field of `kind` itself needs a default.
    """
    return kind(**_fitting_fields(kind, value if isinstance(value, dict) else {}))


def fitting(kind: Type[Record], value: Json) -> Optional[Record]:
    """Make a record of what fits, as `decode_parts` does; None where it lacks what it needs."""
    decoder: Decoder[Record] = _decoder(kind, in_parts=True)
    try:
        return decoder(value)
    except _Misfit:
        return None


def _fitting(decoder: Decoder[Item], values: Iterable[Json]) -> List[Item]:
    items: List[Item] = []
    for value in values:
        try:
            items.append(decoder(value))
        except _Misfit:
            continue
    return items


def _parts(annotation: Annotation) -> Tuple[Any, ...]:
    return tuple(getattr(annotation, "__args__", None) or ())


def _decoder(kind: Annotation, in_parts: bool = False) -> FieldDecoder:
    """Give what reads an annotation; `in_parts`: what does not fit inside of it is left out."""
    made = _decoders.get((kind, in_parts))
    if made is None:
        made = _decoders[kind, in_parts] = _make_decoder(kind, in_parts)
    return made


def _make_decoder(kind: Annotation, in_parts: bool) -> FieldDecoder:
    simple = _SIMPLE.get(kind)
    if simple is not None:
        return simple
    if isinstance(kind, Bounded):
        return _within_bound(_decoder(kind.kind, in_parts), kind.bound)
    origin = getattr(kind, "__origin__", None)
    parts = _parts(kind)
    if origin is typing.Union or type(kind).__name__ == "UnionType":
        decoders = [_decoder(part, in_parts) for part in parts if part is not type(None)]
        return _union(decoders, type(None) in parts)
    if origin is typing.Literal:
        return _literal(parts)
    if origin is tuple and parts[1:] != (Ellipsis,):
        return _tuple([_decoder(part) for part in parts if part != ()])
    if origin in _SEQUENCES:
        return _sequence(_decoder(parts[0], in_parts), _SEQUENCES[origin], in_parts)
    if origin in _MAPPINGS:
        return _mapping(
            _number_as_name if parts[0] is int else _decoder(parts[0]), _decoder(parts[1], in_parts), in_parts
        )
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _enumeration(kind)
    if isinstance(kind, type) and is_record(kind):
        return _record_in_parts(kind) if in_parts else _record(kind)
    raise TypeError("a record cannot hold %r" % (kind,))


def is_record(kind: Annotation) -> bool:
    """Tell whether a class is a NamedTuple or a dataclass."""
    return isinstance(kind, type) and (hasattr(kind, "_field_defaults") or hasattr(kind, "__dataclass_fields__"))


def _expected(what: str, value: Json) -> _Misfit:
    return _Misfit("expected %s, got %s" % (what, _shown(value)))


def _shown(value: Json) -> str:
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):  # a date of YAML
        text = type(value).__name__
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def _text(value: Json) -> str:
    if not isinstance(value, str):
        raise _expected("a text", value)
    return value


def _whole(value: Json) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -LARGEST <= value <= LARGEST:
        raise _expected("an integer", value)
    return value


def _number(value: Json) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -1e300 < value < 1e300:
        raise _expected("a number", value)
    return float(value)


def _number_as_name(name: Json) -> int:
    """Read a number that is the name of a field."""
    text = str(name)
    if len(text) > DIGITS or not (text.isascii() and text.lstrip("-").isdecimal()):
        raise _expected("a number as its name", name)
    return _whole(int(text))


def _flag(value: Json) -> bool:
    if not isinstance(value, bool):
        raise _expected("true or false", value)
    return value


def _anything(value: Json) -> Json:
    return value


_SIMPLE: Dict[Annotation, FieldDecoder] = {
    str: _text,
    int: _whole,
    float: _number,
    bool: _flag,
    object: _anything,  # what Json is at run time
    Any: _anything,
}
_SEQUENCES: Dict[Annotation, Callable[[List[Any]], Any]] = {
    list: list,
    tuple: tuple,
    abc.Sequence: tuple,
    frozenset: frozenset,
    abc.Set: frozenset,
}
_MAPPINGS = (dict, abc.Mapping)


def _within_bound(decoder: Decoder[Item], bound: Bound) -> Decoder[Item]:
    def read(value: Json) -> Item:
        item = decoder(value)
        if not bound.holds(item):
            raise _expected(bound.words, value)
        return item

    return read


def _union(decoders: Sequence[Decoder[Item]], optional: bool) -> Decoder[Optional[Item]]:
    def read(value: Json) -> Optional[Item]:
        if value is None and optional:
            return None
        for decoder in decoders[:-1]:
            try:
                return decoder(value)
            except _Misfit:
                continue
        return decoders[-1](value)

    return read


def _literal(choices: Tuple[Item, ...]) -> Decoder[Item]:
    wanted = "one of " + ", ".join(str(choice) for choice in choices)

    def read(value: Json) -> Item:
        for choice in choices:
            if value == choice and type(value) is type(choice):
                return choice
        raise _expected(wanted, value)

    return read


def _enumeration(kind: Type[Member]) -> Decoder[Member]:
    wanted = "one of " + ", ".join(str(member.value) for member in kind)

    def read(value: Json) -> Member:
        try:
            return kind(value)
        except (ValueError, TypeError):
            raise _expected(wanted, value) from None

    return read


def _tuple(decoders: Sequence[Decoder[Item]]) -> Decoder[Tuple[Item, ...]]:
    def read(value: Json) -> Tuple[Item, ...]:
        items = _items(value)
        if len(items) != len(decoders):
            raise _expected("an array of %d" % len(decoders), value)
        return tuple(_decode_items(decoders, items))

    return read


def _sequence(decoder: Decoder[Item], make: Callable[[List[Item]], Container], in_parts: bool) -> Decoder[Container]:
    def read(value: Json) -> Container:
        if in_parts:
            return make(_fitting(decoder, _items(value)))
        return make(_decode_items(itertools.repeat(decoder), _items(value)))

    return read


def _items(value: Json) -> Sequence[Json]:
    if not isinstance(value, (list, tuple)):
        raise _expected("an array", value)
    return value


def _decode_items(decoders: Iterable[Decoder[Item]], items: Sequence[Json]) -> List[Item]:
    result: List[Item] = []
    try:
        for item, decoder in zip(items, decoders):
            result.append(decoder(item))
    except _Misfit as misfit:
        raise misfit.inside("[%d]" % len(result)) from None
    return result


def _mapping(read_name: Decoder[Key], decoder: Decoder[Item], in_parts: bool) -> Decoder[Dict[Key, Item]]:
    def read_pair(pair: Json) -> Tuple[Key, Item]:
        name, item = _items(pair)
        return read_name(name), decoder(item)

    def read(value: Json) -> Dict[Key, Item]:
        if not isinstance(value, dict):
            raise _expected("an object", value)
        if in_parts:
            return dict(_fitting(read_pair, tuple(value.items())))
        result: Dict[Key, Item] = {}
        name = None
        try:
            for name, item in value.items():
                result[read_name(name)] = decoder(item)
        except _Misfit as misfit:
            raise misfit.inside(".%s" % name) from None
        return result

    return read


def _record(kind: Type[Record]) -> Decoder[Record]:
    fields = _fields(kind)
    whole = _spread.get(kind)
    defaults = getattr(kind, "_field_defaults", None)  # None: a dataclass, which makes some of its defaults itself

    def read(value: Json) -> Record:
        if not isinstance(value, dict):
            raise _expected("an object", value)
        values = {}
        key = ""
        try:
            for name, key, has_default, decoder in fields:
                if name == whole:
                    values[name] = decoder(value)
                elif key in value:
                    values[name] = decoder(value[key])
                elif not has_default:
                    raise _Misfit("expected a value, got none")
                elif defaults is not None:
                    values[name] = defaults[name]
        except _Misfit as misfit:
            raise misfit.inside(".%s" % key) from None
        if defaults is None:
            return kind(**values)
        return kind(*values.values())  # all are there, in their order, and go faster without their names

    return read


def _record_in_parts(kind: Type[Record]) -> Decoder[Record]:
    needed = frozenset(name for base in kind.__mro__ for name in _needed.get(base, ()))
    required = needed.union(field.name for field in _fields(kind) if not field.has_default)

    def read(value: Json) -> Record:
        if not isinstance(value, dict):
            raise _expected("an object", value)
        values = _fitting_fields(kind, value)
        for name in required:
            if name not in values or (name in needed and values[name] is None):
                raise _Misfit("expected a value, got none").inside("." + json_name(name))
        return kind(**values)

    return read


def _fitting_fields(kind: type, value: JsonObject) -> Dict[str, Any]:
    values = {}
    whole = _spread.get(kind)
    for field in _fields(kind, in_parts=True):
        if field.key in value or field.name == whole:
            try:
                values[field.name] = field.decoder(value if field.name == whole else value[field.key])
            except _Misfit:
                continue
    return values


def needs(*names: str) -> Callable[[Type[Record]], Type[Record]]:
    """Decorate a record: without a value in these fields it says nothing, and `decode_parts` leaves it out."""

    return _marking(_needed, frozenset(names))


def json_name(field: str) -> str:
    """Give a field's name in JSON: `from_` is "from"."""
    return field.rstrip("_")


class _Field(NamedTuple):
    """A field of a record: its name, its name in JSON, whether it may be absent, and what reads it."""

    name: str
    key: str
    has_default: bool
    decoder: FieldDecoder


def _fields(kind: type, in_parts: bool = False) -> List[_Field]:
    fields = _fields_of.get((kind, in_parts))
    if fields is None:
        hints = typing.get_type_hints(kind)
        defaults = _defaults(kind)
        fields = []
        for name in field_names(kind):
            fields.append(_Field(name, json_name(name), name in defaults, _decoder(hints[name], in_parts)))
        _fields_of[kind, in_parts] = fields  # not before: other threads decode too
    return fields


def field_names(kind: Any) -> Tuple[str, ...]:
    """Give the names of a record's fields, in their order."""
    fields = getattr(kind, "_fields", None)
    return tuple(kind.__dataclass_fields__ if fields is None else fields)


def _defaults(kind: Any) -> FrozenSet[str]:
    named = getattr(kind, "_field_defaults", None)
    if named is not None:
        return frozenset(named)
    import dataclasses  # late: a node has no dataclass to decode and does without the module's 5 ms

    fields = dataclasses.fields(kind)
    missing = dataclasses.MISSING
    return frozenset(f.name for f in fields if f.default is not missing or f.default_factory is not missing)


# -- encoding ------------------------------------------------------------------------------------------

_PLAIN: FrozenSet[type] = frozenset((str, int, float, bool, type(None)))  # the quick way for most values
_TEXTS: FrozenSet[type] = frozenset((str,))
_ARRAYS: FrozenSet[type] = frozenset((list, tuple))
_omitted: Dict[type, FrozenSet[str]] = {}
_sparse: Set[type] = set()
_computed: Dict[type, Tuple[str, ...]] = {}
_shapes: Dict[type, "Shape"] = {}


def omit_empty(*names: str) -> Callable[[Type[Record]], Type[Record]]:
    """Decorate a record: fields of these names (without names: all) are left out of its JSON while they are empty.

    Empty are None, "", and containers without elements; 0 and false are values.
    """

    def mark(kind: Type[Record]) -> Type[Record]:
        _omitted[kind] = frozenset(names or field_names(kind))
        return kind

    return mark


def omit_none(kind: Type[Record]) -> Type[Record]:
    """Decorate a record: fields that are None are left out of its JSON."""
    _sparse.add(kind)
    return kind


def spread(name: str) -> Callable[[Type[Record]], Type[Record]]:
    """Decorate a record: the fields of the record in this field stand in the JSON object among the others."""

    return _marking(_spread, name)


def computed(*names: str) -> Callable[[Type[Record]], Type[Record]]:
    """Decorate a record: these properties are written too, unless they are empty, and not read."""

    return _marking(_computed, names)


def _marking(table: Dict[type, Item], mark: Item) -> Callable[[Type[Record]], Type[Record]]:
    def note(kind: Type[Record]) -> Type[Record]:
        table[kind] = mark
        return kind

    return note


def encode(value: Any) -> Any:
    """Make the JSON value of a record, or of containers of records."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    # Most containers are of texts and numbers alone, as the variables of a rank.
    if kind is dict and _are_of(_PLAIN, value.values()) and _are_of(_TEXTS, value):
        return dict(value)
    if kind in _ARRAYS and _are_of(_PLAIN, value):
        return list(value)
    return _encode_any(value, kind)


def _are_of(kinds: FrozenSet[type], values: Iterable[object]) -> bool:
    return kinds.issuperset(map(type, values))


def _encode_any(value: object, kind: type) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (str, int, float)):
        return value
    if is_record(kind):
        return _encode_record(value, kind)
    if isinstance(value, Mapping):
        return {str(encode(key)): encode(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(encode(item) for item in value)
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    raise TypeError("%s cannot be written as JSON" % kind.__name__)


def make_document(record: object) -> JsonObject:
    """Make the JSON object of a record as users get it: with the number of its schema."""
    return {"schema": SCHEMA, **encode(record)}


def document_line(record: object) -> str:
    """Write the document of a record, without the end of the line."""
    return json.dumps(make_document(record))


class Shape(NamedTuple):
    """How a kind of record is written: its fields with their names in JSON, and what it leaves out.

    The fields of the record in the field `spread` stand among the others; `computed` are properties.
    """

    fields: Tuple[Tuple[str, str], ...]
    omitted: FrozenSet[str]
    is_sparse: bool
    spread: Optional[str]
    computed: Tuple[str, ...]


def shape_of(kind: Any) -> Shape:
    """Tell how a kind of record is written."""
    shape = _shapes.get(kind)
    if shape is None:
        shape = _shapes[kind] = Shape(
            fields=tuple((name, json_name(name)) for name in field_names(kind)),
            omitted=_omitted.get(kind, frozenset()),
            is_sparse=kind in _sparse,
            spread=_spread.get(kind),
            computed=_computed.get(kind, ()),
        )
    return shape


def _encode_record(value: object, kind: Any) -> JsonObject:
    shape = shape_of(kind)
    result = {}
    for name, key in shape.fields:
        item = getattr(value, name)
        if (item is None and shape.is_sparse) or (name in shape.omitted and _is_empty(item)):
            continue
        if type(item) in _PLAIN:
            result[key] = item
        elif name == shape.spread:
            result.update(encode(item))
        else:
            result[key] = encode(item)
    for name in shape.computed:
        item = getattr(value, name)
        if not _is_empty(item):
            result[name] = item
    return result


def _is_empty(item: object) -> bool:
    return item is None or (isinstance(item, (str, tuple, list, dict, frozenset)) and not item)


# -- words for records ---------------------------------------------------------------------------------


class Vocabulary(Generic[Record]):
    """Records that travel as JSON objects, each with the word for its kind under `key`."""

    def __init__(self, key: str, kinds: Dict[str, Any]) -> None:
        self._key = key
        self._kinds = kinds
        self._words = {kind: word for word, kind in kinds.items()}

    def word(self, record: Record) -> str:
        """Give the word for a record's kind."""
        return self._words[type(record)]

    def write(self, record: Record) -> JsonObject:
        """Make the JSON object of a record."""
        return {self._key: self.word(record), **_encode_record(record, type(record))}

    def read(self, value: JsonObject) -> Record:
        """Make the record of a JSON object; raise DecodeError that names the kind and the place."""
        word = value.get(self._key)
        kind = self._kinds.get(word) if isinstance(word, str) else None
        if kind is None:
            raise DecodeError("$.%s: expected a known word, got %s" % (self._key, _shown(word)))
        record: Record = decode(kind, value)
        return record


def by_name(kinds: Annotation, ending: str, others: Mapping[type, str] = {}) -> Dict[str, Any]:
    """Give the records of a union by their words.

    They are those of the class, before its ending: `CallTimesOrder` is "call-times". `others` have another word.
    """
    records: Dict[str, Any] = {}
    for kind in _parts(kinds):
        word = others.get(kind)
        if word is None:
            name_length = len(kind.__name__) - len(ending)
            word = "-".join(re.findall("[A-Z][a-z]*", kind.__name__[:name_length])).lower()
        records[word] = kind
    return records

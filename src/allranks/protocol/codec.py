"""Turn records into JSON values and back, by their annotations (pure).

A record is a NamedTuple (whatever a node decodes: 60 frozen dataclasses cost 36 ms of import a node, as many
NamedTuples 6 to 9 ms) or a dataclass. A field's JSON name is its own, without a trailing underscore. Known annotations:
str, int, float, bool, None, object (any JSON value, taken as it is), Optional and Union of these, Literal, an Enum (by
value), Tuple, List, FrozenSet, Dict with str or int keys, and records.

Decoding happens once, at the edge: the text comes from `jsontext.read_json`, which bounds size, depth and numbers.
`decode` then checks every value and says where the first wrong one stands:
`$.ranks[2].pid: expected an integer, got "abc"`.
Fields that a record does not have are ignored, absent ones take their defaults.
"""

import enum
import json
import typing
from collections import abc
from typing import Any, Callable, Dict, FrozenSet, Generic, List, Mapping, NamedTuple, Set, Tuple, Type, TypeVar

from .jsontext import DIGITS, JsonObject
from .jsontext import DecodeError as DecodeError  # for those who decode
from .jsontext import read_json as read_json
from .jsontext import write_json as write_json

Record = TypeVar("Record")
Decoder = Callable[[object], Any]

LARGEST = 2**63 - 1  # of an integer: what the frames and every file offset can hold
SHOWN = 60  # characters of a wrong value in a message


# -- decoding ------------------------------------------------------------------------------------------

_decoders: Dict[object, Decoder] = {}
_fields_of: Dict[object, List["_Field"]] = {}


class _Misfit(Exception):
    """A value that a decoder refuses; each container that it leaves adds its part of the place."""

    def __init__(self, words: str) -> None:
        super().__init__(words)
        self.words = words
        self.place = ""

    def inside(self, part: str) -> "_Misfit":
        self.place = part + self.place
        return self


def decode(kind: Type[Record], value: object, path: str = "$") -> Record:
    """Make a record (or any annotated type) of a JSON value; raise DecodeError that names the place."""
    decoder: Callable[[object], Record] = _decoder(kind)
    try:
        return decoder(value)
    except _Misfit as misfit:
        raise DecodeError("%s%s: %s" % (path, misfit.place, misfit.words)) from None


def decode_each(kind: Type[Record], values: object) -> List[Record]:
    """Make records of the elements of an array that fit; leave out the others, and all of what is no array."""
    decoder: Callable[[object], Record] = _decoder(kind)
    records = []
    for value in values if isinstance(values, (list, tuple)) else ():
        try:
            records.append(decoder(value))
        except _Misfit:
            continue
    return records


def decode_parts(kind: Type[Record], value: object) -> Record:
    """Make a record of which every field has a default: a field that does not fit takes it, as one that is absent.

    An array of records keeps those that fit.
    """
    values = {}
    if isinstance(value, abc.Mapping):
        for field in _fields(kind):
            if field.key in value:
                try:
                    values[field.name] = field.part_decoder(value[field.key])
                except _Misfit:
                    continue
    return kind(**values)


def _part_decoder(annotation: object) -> Decoder:
    parts = tuple(getattr(annotation, "__args__", None) or ())
    if getattr(annotation, "__origin__", None) is tuple and parts[1:] == (Ellipsis,) and is_record(parts[0]):
        return lambda values: tuple(decode_each(parts[0], values))
    return _decoder(annotation)


def _decoder(kind: object) -> Decoder:
    made = _decoders.get(kind)
    if made is None:
        made = _decoders[kind] = _make_decoder(kind)
    return made


def _make_decoder(kind: object) -> Decoder:
    simple = _SIMPLE.get(kind)
    if simple is not None:
        return simple
    origin = getattr(kind, "__origin__", None)
    arguments = tuple(getattr(kind, "__args__", ()) or ())
    if origin is typing.Union or type(kind).__name__ == "UnionType":
        return _union(arguments)
    if origin is getattr(typing, "Literal", None) and origin is not None:
        return _literal(arguments)
    if origin is tuple:
        return _tuple(arguments)
    if origin in _SEQUENCES:
        return _sequence(arguments[0], _SEQUENCES[origin])
    if origin in _MAPPINGS:
        return _mapping(arguments[0], arguments[1])
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _enumeration(kind)
    if is_record(kind):
        return _record(kind)
    raise TypeError("a record cannot hold %r" % (kind,))


def is_record(kind: object) -> bool:
    """Tell whether a class is a NamedTuple or a dataclass."""
    return isinstance(kind, type) and (hasattr(kind, "_field_defaults") or hasattr(kind, "__dataclass_fields__"))


def _expected(what: str, value: object) -> _Misfit:
    return _Misfit("expected %s, got %s" % (what, _shown(value)))


def _shown(value: object) -> str:
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = type(value).__name__
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _expected("a text", value)
    return value


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -LARGEST <= value <= LARGEST:
        raise _expected("an integer", value)
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -1e300 < value < 1e300:
        raise _expected("a number", value)
    return float(value)


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise _expected("true or false", value)
    return value


def _nothing(value: object) -> None:
    if value is not None:
        raise _expected("null", value)


def _anything(value: object) -> object:
    return value


_SIMPLE = {
    str: _text,
    int: _whole,
    float: _number,
    bool: _flag,
    None: _nothing,
    type(None): _nothing,
    object: _anything,
    Any: _anything,
}  # type: Dict[object, Decoder]
_SEQUENCES: Dict[object, Callable[[List[Any]], Any]] = {
    list: list,
    abc.Sequence: tuple,
    frozenset: frozenset,
    abc.Set: frozenset,
}
_MAPPINGS = (dict, abc.Mapping)


def _union(choices: Tuple[object, ...]) -> Decoder:
    decoders = [_decoder(choice) for choice in choices if choice is not type(None)]
    optional = type(None) in choices

    def read(value: object) -> object:
        if value is None and optional:
            return None
        for decoder in decoders[:-1]:
            try:
                return decoder(value)
            except _Misfit:
                continue
        return decoders[-1](value)

    return read


def _literal(choices: Tuple[object, ...]) -> Decoder:
    wanted = "one of " + ", ".join(str(choice) for choice in choices)

    def read(value: object) -> object:
        if not any(value == choice and type(value) is type(choice) for choice in choices):
            raise _expected(wanted, value)
        return value

    return read


def _enumeration(kind: Type[enum.Enum]) -> Decoder:
    wanted = "one of " + ", ".join(str(member.value) for member in kind)

    def read(value: object) -> enum.Enum:
        try:
            return kind(value)
        except (ValueError, TypeError):
            raise _expected(wanted, value) from None

    return read


def _items(value: object) -> List[object]:
    if not isinstance(value, (list, tuple)):
        raise _expected("an array", value)
    return list(value)


def _tuple(parts: Tuple[object, ...]) -> Decoder:
    if len(parts) == 2 and parts[1] is Ellipsis:
        return _sequence(parts[0], tuple)
    decoders = [_decoder(part) for part in parts if part != ()]

    def read(value: object) -> Tuple[object, ...]:
        items = _items(value)
        if len(items) != len(decoders):
            raise _expected("an array of %d" % len(decoders), value)
        result: List[object] = []
        try:
            for decoder, item in zip(decoders, items):
                result.append(decoder(item))
        except _Misfit as misfit:
            raise misfit.inside("[%d]" % len(result)) from None
        return tuple(result)

    return read


def _sequence(part: object, make: Callable[[List[Any]], Any]) -> Decoder:
    decoder = _decoder(part)

    def read(value: object) -> object:
        items = _items(value)
        result: List[object] = []
        try:
            for item in items:
                result.append(decoder(item))
        except _Misfit as misfit:
            raise misfit.inside("[%d]" % len(result)) from None
        return make(result)

    return read


def _mapping(key: object, part: object) -> Decoder:
    decoder = _decoder(part)

    def read(value: object) -> Dict[Any, object]:
        if not isinstance(value, dict):
            raise _expected("an object", value)
        result: Dict[Any, object] = {}
        name = None
        try:
            for name, item in value.items():
                result[_key(key, name)] = decoder(item)
        except _Misfit as misfit:
            raise misfit.inside(".%s" % name) from None
        return result

    return read


def _key(kind: object, name: object) -> object:
    if kind is not int:
        return _text(name)
    text = str(name)
    if len(text) > DIGITS or not (text.isascii() and text.lstrip("-").isdecimal()):
        raise _expected("a number as its name", name)
    return _whole(int(text))


def _record(kind: Any) -> Decoder:
    fields = _fields(kind)

    def read(value: object) -> object:
        if not isinstance(value, dict):
            raise _expected("an object", value)
        values = {}
        key = ""
        try:
            for name, key, has_default, decoder, _ in fields:
                if key in value:
                    values[name] = decoder(value[key])
                elif not has_default:
                    raise _Misfit("expected a value, got none")
        except _Misfit as misfit:
            raise misfit.inside(".%s" % key) from None
        return kind(**values)

    return read


def json_name(field: str) -> str:
    """Give a field's name in JSON: `from_` is "from"."""
    return field[:-1] if field.endswith("_") else field


class _Field(NamedTuple):
    """A field of a record: its name, its name in JSON, whether it may be absent, what reads it, and as a part."""

    name: str
    key: str
    has_default: bool
    decoder: Decoder
    part_decoder: Decoder


def _fields(kind: Any) -> List[_Field]:
    fields = _fields_of.get(kind)
    if fields is None:
        hints = typing.get_type_hints(kind)
        defaults = _defaults(kind)
        fields = []
        for name in _names(kind):
            decoders = (_decoder(hints[name]), _part_decoder(hints[name]))
            fields.append(_Field(name, json_name(name), name in defaults, *decoders))
        _fields_of[kind] = fields  # not before: other threads decode too
    return fields


def _names(kind: Any) -> Tuple[str, ...]:
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

_omitted: Dict[object, FrozenSet[str]] = {}
_sparse: Set[object] = set()


def omit_empty(*names: str) -> Callable[[Type[Record]], Type[Record]]:
    """Decorate a record: fields of these names (without names: all) are left out of its JSON while they are empty.

    Empty are None, "", and containers without elements; 0 and false are values.
    """

    def mark(kind: Type[Record]) -> Type[Record]:
        _omitted[kind] = frozenset(names or _names(kind))
        return kind

    return mark


def omit_none(kind: Type[Record]) -> Type[Record]:
    """Decorate a record: fields that are None are left out of its JSON."""
    _sparse.add(kind)
    return kind


def encode(value: object) -> Any:
    """Make the JSON value of a record, or of containers of records."""
    if value is None or isinstance(value, (str, int, float)):
        return value.value if isinstance(value, enum.Enum) else value
    kind = type(value)
    if is_record(kind):
        return _encode_record(value, kind)
    if isinstance(value, Mapping):
        return {_encode_key(key): encode(item) for key, item in value.items()}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (set, frozenset)):
        return sorted(encode(item) for item in value)
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    raise TypeError("%s cannot be written as JSON" % kind.__name__)


def _encode_key(key: object) -> str:
    return str(key.value if isinstance(key, enum.Enum) else key)


def _encode_record(value: object, kind: Any) -> JsonObject:
    omitted = _omitted.get(kind, ())
    is_sparse = kind in _sparse
    result = {}
    for name in _names(kind):
        item = getattr(value, name)
        if (name in omitted and _is_empty(item)) or (item is None and is_sparse):
            continue
        result[json_name(name)] = encode(item)
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

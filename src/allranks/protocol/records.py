"""NamedTuples that are made in a tenth of the time, and otherwise as typing's (pure, Python 3.8).

`typing.NamedTuple` compiles a constructor for each class and looks at its annotations. A node loads some hundred
records and makes few of them, so here all share one constructor. A module with such records begins with
`from __future__ import annotations`: the codec evaluates those that it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    from _collections import _tuplegetter  # as collections.namedtuple does

    class _Record(tuple):
        """What all records can do; `_fields` and `_field_defaults` are each class's own."""

        __slots__ = ()

        def __new__(cls, *values, **named):
            """Make a record; raise TypeError where a field has no value, or two, or is unknown."""
            missing = cls._fields[len(values) :]
            if named or missing or len(values) > len(cls._fields):
                values += tuple(_rest(cls, missing, named))
                if named or len(values) > len(cls._fields):
                    raise TypeError("%s has no place for %r" % (cls.__name__, named or values[len(cls._fields) :]))
            return tuple.__new__(cls, values)

        def _replace(self, **named):
            values = [named.pop(name, value) for name, value in zip(self._fields, self)]
            return type(self)(*values, **named)  # what is left has no place

        def _asdict(self):
            return dict(zip(self._fields, self))

        def __repr__(self):
            fields = ", ".join("%s=%r" % field for field in zip(self._fields, self))
            return "%s(%s)" % (type(self).__name__, fields)

        def __getnewargs__(self):
            return tuple(self)

    def _rest(cls, fields, named):
        for field in fields:
            if field in named:
                yield named.pop(field)
            elif field in cls._field_defaults:
                yield cls._field_defaults[field]
            else:
                raise TypeError("%s lacks %s" % (cls.__name__, field))

    class _RecordMaker(type):
        """Makes a plain class of the fields that a class statement annotates."""

        def __new__(mcs, name, bases, namespace):
            fields = tuple(namespace.get("__annotations__", ()))
            namespace["_field_defaults"] = {field: namespace[field] for field in fields if field in namespace}
            namespace["_fields"] = namespace["__match_args__"] = fields
            namespace["__slots__"] = ()
            for index, field in enumerate(fields):
                namespace[field] = _tuplegetter(index, "")
            return type.__new__(type, name, (_Record,), namespace)

    NamedTuple = type.__new__(_RecordMaker, "NamedTuple", (), {"__module__": __name__})

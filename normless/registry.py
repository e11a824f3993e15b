"""Open registries of schemes, edits, data sets, models, probes and artefacts by name."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from difflib import get_close_matches
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from types import NoneType, UnionType
from typing import Any, Generic, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from normless.code_names import file_of_module, neighbours_of, object_named
from normless.errors import MissingExtraError
from normless.extras import missing_extra
from normless.spec import parse_call

__all__ = ["Registry"]

Entry = TypeVar("Entry")

_WORDS = {float: "a number", int: "a whole number", bool: "True or False", str: "a text", NoneType: "None"}


@dataclass(frozen=True)
class Description:
    """A line of `normless list`: the name, the first line of the docstring, and the distribution."""

    name: str
    summary: str
    origin: str


class Registry(Mapping[str, Entry], Generic[Entry]):
    """Functions or classes of one kind by name.

    An entry is added by the decorator `register`, or by an entry point of an installed distribution in the group
    `normless.PLURAL`. Wherever a name is taken, `FILE.py:NAME` and `MODULE:NAME` are taken too.

    Args:
        kind: the kind of entry in the singular, for messages: ``"scheme"``.
        plural: its plural; `kind` with an s by default.
        sources: prefixes of names that are resolved elsewhere, as ``timm`` in ``timm:NAME``.
        package: the package that imports the modules of its own entries.
        of: the class of the entries, if they are neither functions nor classes.
    """

    def __init__(
        self,
        kind: str,
        plural: str | None = None,
        *,
        sources: Collection[str] = (),
        package: str = "normless",
        of: type | None = None,
    ) -> None:
        self.kind, self.sources, self.package, self.of = kind, sources, package, of
        self.plural = plural or f"{kind}s"
        self._own: dict[str, Entry] = {}

    def register(self, name: str | None = None) -> Callable[[Entry], Entry]:
        """Decorate a function or class to add it under a name, by default its own; ValueError if the name is taken.

        A definition that is executed again, as in a notebook, replaces itself.
        """

        def add(entry: Entry) -> Entry:
            key = name or str(getattr(entry, "__name__", ""))
            if key in self._own and not _same_definition(self._own[key], entry):
                raise ValueError(f"There is a {self.kind} {key!r} already; choose another name.")
            self._own[key] = entry
            return entry

        return add

    @cached_property
    def _points(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=f"normless.{self.plural}")}

    def __getitem__(self, name: str) -> Entry:
        point = self._points.get(name)
        if point is not None:
            try:
                entry: Entry = point.load()
            except ModuleNotFoundError as error:
                if not point.extras or isinstance(error, MissingExtraError):
                    raise
                what = f"The {self.kind} {point.name!r}"
                raise missing_extra(",".join(point.extras), what, str(error.name)) from error
            if self._own.setdefault(name, entry) is not entry:
                raise ValueError(
                    f"The {self.kind} {name!r} is registered twice, by {_distribution(point)} too, as {point.value}: "
                    "rename that entry point, or uninstall the distribution."
                )
        return self._own[name]

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in self._points

    def __iter__(self) -> Iterator[str]:
        # Entry points are among the own entries once they are loaded.
        return iter([*(name for name in self._own if name not in self._points), *self._points])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def require(self, name: str) -> None:
        """Raise a ValueError for a name that is neither an entry's nor `FILE.py:NAME` or `MODULE:NAME`."""
        if name not in self and ":" not in name:
            raise ValueError(
                f"There is no {self.kind} {name!r}.{did_you_mean(name, self)} The {self.plural} are "
                f"{', '.join(self)}; one of your own is FILE.py:NAME or MODULE:NAME."
            )

    def find(self, name: str) -> Entry:
        """Return the entry of a name, `FILE.py:NAME` or `MODULE:NAME`; a file is executed once per version."""
        self.require(name)
        if name in self:
            return self[name]
        source, own = (part.strip() for part in name.rsplit(":", 1))
        try:
            entry = object_named(name)
        except ModuleNotFoundError as error:
            if source.endswith(".py"):
                raise
            meant = did_you_mean(source, self.sources)
            raise ValueError(f"There is no module {source} with a {self.kind} {own!r}: {error}.{meant}") from error
        if not (callable(entry) if self.of is None else isinstance(entry, self.of)):
            what = "function or class" if self.of is None else self.of.__name__
            raise ValueError(f"{source} has no {what} {own!r}, so no {self.kind} of that name.")
        return cast(Entry, entry)

    def make(self, text: str, **given: Any) -> Any:
        """Call the entry that a text such as ``name(key=value)`` names, with its arguments and those given."""
        name, arguments = parse_call(text)
        entry = self.find(name)
        assert callable(entry)
        check_arguments(f"{self.kind} {name}", arguments, entry, given=given)
        with neighbours_of(name.rpartition(":")[0]):
            return entry(**given, **arguments)

    def text_of(self, entry: Any) -> str:
        """Return the text for `find` in another process: `NAME`, `FILE.py:NAME` or `MODULE:NAME`.

        A function or class that cannot be found, as a nested definition, has its own name.
        """
        name = next((name for name, registered in self._own.items() if registered is entry), None)
        home, own = entry.__module__, entry.__qualname__
        if name is not None and (name in self._points or home.partition(".")[0] == self.package):
            return name
        file = file_of_module(home) or (getattr(sys.modules[home], "__file__", None) if home == "__main__" else home)
        return own if "." in own or file is None else f"{file}:{own}"

    def describe(self) -> tuple[Description, ...]:
        """Describe every entry by the first line of its docstring and its distribution."""
        described = []
        for name in self:
            point = self._points.get(name)
            try:
                summary = (inspect.getdoc(self[name]) or "").partition("\n")[0]
            except MissingExtraError as error:
                summary = str(error)
            origin = self[name].__module__.partition(".")[0] if point is None else _distribution(point)
            described.append(Description(name, summary, origin))
        return tuple(described)


TABLES: Registry[Registry[Any]] = Registry("table")
"""The tables that `normless list` shows, by entry points; packages above this one add their own."""
EXTENSIONS: Registry[Callable[..., Any]] = Registry("extension")
"""Functions of packages above this one, by entry points: to draw figures, to load data sets."""


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return a sentence for an unknown name, ` Did you mean fixup?`, or "" if no known name is similar."""
    by_small = {candidate.lower(): candidate for candidate in known}
    close = get_close_matches(name.lower(), by_small, n=1)
    return f" Did you mean {by_small[close[0]]}?" if close else ""


def _distribution(point: EntryPoint) -> str:
    return point.value if point.dist is None else point.dist.name


def _same_definition(first: Any, second: Any) -> bool:
    """Whether two functions or classes are the same definition, executed twice."""
    name = getattr(first, "__qualname__", None)
    homes = [file_of_module(entry.__module__) or entry.__module__ for entry in (first, second)]
    return name is not None and name == getattr(second, "__qualname__", None) and homes[0] == homes[1]


def check_arguments(
    what: str, arguments: Mapping[str, Any], function: Callable[..., Any], *, given: Collection[str] = ()
) -> None:
    """Refuse arguments that a function does not take, or with another type than annotated, except those `given`.

    `what` is the kind and name of the function, for messages.
    """
    signature = inspect.signature(function).parameters
    variadic = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.values())
    known = {
        name: parameter
        for name, parameter in signature.items()
        if name not in given and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }
    unknown = [name for name in arguments if name not in known]
    if unknown and not variadic:
        takes = f"takes {', '.join(known)}" if known else "takes no arguments"
        meant = did_you_mean(unknown[0], known)
        raise ValueError(f"The {what} {takes}; it does not take {', '.join(unknown)}.{meant}")
    missing = [
        name for name, parameter in known.items() if parameter.default is parameter.empty and name not in arguments
    ]
    if missing:
        raise ValueError(f"The {what} needs {', '.join(missing)}, as in {what.split()[-1]}({missing[0]}=…).")
    try:
        # Of a class, its fields: each is annotated in the module that defines it.
        types = get_type_hints(function)
        types |= get_type_hints(function.__init__) if inspect.isclass(function) and not is_dataclass(function) else {}
    except (NameError, TypeError):  # An annotation that is imported for type checkers alone; a callable object.
        types = {}
    for name, value in arguments.items():
        if name in types and not _fits(value, types[name]):
            raise ValueError(f"In the {what}, {name} is {_in_words(types[name])}, not {value!r}.")


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value read from text has an annotated type; True is not a number, and a list is a tuple."""
    if kind is Any:
        return True
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return any(_fits(value, member) for member in get_args(kind))
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    kind = get_origin(kind) or kind
    if kind in (bool, int, str, tuple, NoneType):
        return type(value) is kind
    return isinstance(value, kind)


def _in_words(kind: Any) -> str:
    """Describe an annotation: `a number`, `he, xavier or None`."""
    if get_origin(kind) is Literal:
        return ", ".join(str(value) for value in get_args(kind))
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(_in_words(member) for member in get_args(kind))
    kind = get_origin(kind) or kind
    return _WORDS.get(kind, f"a {getattr(kind, '__name__', kind)}")

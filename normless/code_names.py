"""Code that a text names, `FILE.py:NAME` or `MODULE:NAME`, and who may name it.

Code is executed if a person named it: in an argument of a command or a function, or in a configuration of their own.
A text that is read from data (a saved network, the folder of a run, a table of results) names entries of our tables,
and only such code as a person named before in this process, or as they saved or trained a network of, if the file and
all modules beside it are unchanged.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from hashlib import sha256
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from normless._internal.code_digest import digest_of_importable
from normless.errors import UntrustedCodeError
from normless.exclusive import borrowing, exclusive
from normless.spec import split_source, split_terms

__all__ = ["module_of_file"]

TRUST = "NORMLESS_TRUST_CODE"
"""The environment variable by which a person trusts the code that their data name, if it is 1."""
FILES_OF_USERS: set[str] = set()
"""The paths of the files that were executed since a text named them."""
# The files of modules that `module_of_file` executed, by module name.
_FILES: dict[str, Path] = {}
# The folders of the modules that those imported from beside them, by module name.
_NEIGHBOURS: dict[str, Path] = {}
# What persons named: file or module, and name in it.
_NAMED_BY_PERSONS: set[tuple[str, str]] = set()
_TRUSTED = ""  # data that a person trusts, and did not write
_DATA: ContextVar[str | None] = ContextVar("data whose texts are resolved", default=None)


@contextmanager
def names_of_data(where: str | Path, *, trust_code: bool = False) -> Iterator[None]:
    """Resolve names in the body as texts of the data `where`: code that nobody named is an UntrustedCodeError.

    Nothing is refused with `trust_code`, or if the environment variable `NORMLESS_TRUST_CODE` is 1.
    """
    token = _DATA.set(_TRUSTED if trust_code or os.environ.get(TRUST) == "1" else str(where))
    try:
        yield
    finally:
        _DATA.reset(token)


def of_data() -> str | None:
    """Return the untrusted data whose texts are being resolved, or None."""
    return _DATA.get() or None


def name_code(*texts: str) -> None:
    """Note the code in texts of models, schemes and data sets that a person wrote; within `names_of_data`, none."""
    if _DATA.get() is None:
        for text in texts:
            for term in split_terms(text) if ":" in text else ():
                source, call = split_source(term)
                _NAMED_BY_PERSONS.add(_key(source.removesuffix(":"), call.partition("(")[0].strip()))


def remember_code(*texts: str) -> None:
    """Keep the digests of the files in texts that a person wrote, so that later processes take them from data.

    They are in the person's own folder, ``$XDG_STATE_HOME/normless``; where that cannot be written, nothing is kept.
    """
    if os.environ.get(TRUST) == "1":
        return  # Data, and not the person, may have named the code.
    for text in texts:
        for term in split_terms(text) if ".py:" in text else ():
            source, call = split_source(term)
            key = _key(source.removesuffix(":"), call.partition("(")[0].strip())
            if key not in _NAMED_BY_PERSONS:
                continue
            with suppress(OSError, RuntimeError):
                digest = digest_of_importable(Path(key[0]))
                if digest is not None:
                    record = _record_of(key)
                    record.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                    record.write_text(digest, encoding="utf-8")


def _is_remembered(key: tuple[str, str]) -> bool:
    """Whether a person saved or trained a network of this file before, and it has not changed since then."""
    if not key[0].endswith(".py"):
        return False
    with suppress(OSError, RuntimeError, ValueError):  # the last of a damaged record
        return _record_of(key).read_text(encoding="utf-8") == digest_of_importable(Path(key[0]))
    return False


def _record_of(key: tuple[str, str]) -> Path:
    return _states() / "code" / sha256(":".join(key).encode()).hexdigest()


def _states() -> Path:
    """Return the person's own folder; a relative XDG_STATE_HOME could be in a folder of data, and does not count."""
    states = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (states if states.is_absolute() else Path.home() / ".local" / "state") / "normless"


def object_named(name: str) -> Any:
    """Import what a text `FILE.py:NAME` or `MODULE:NAME` names; None if the file or module lacks it.

    Raises:
        UntrustedCodeError: the text comes from data, see `names_of_data`.
        ValueError: there is no such file.
        ModuleNotFoundError: there is no such module.
    """
    source, own = (part.strip() for part in name.rsplit(":", 1))
    data, key = of_data(), _key(source, own)
    if data is not None and key not in _NAMED_BY_PERSONS and not _is_remembered(key):
        raise UntrustedCodeError(
            f"{data} names code, {name}, which is executed only if you name it yourself. If you trust this code, set "
            f"the environment variable {TRUST}=1, or pass trust_code=True where a function takes it."
        )
    module = module_of_file(source) if source.endswith(".py") else import_module(source)
    FILES_OF_USERS.add(str(getattr(module, "__file__", source)))
    if _DATA.get() is None:
        _NAMED_BY_PERSONS.add(key)
    return getattr(module, own, None)


def file_of_module(name: str) -> Path | None:
    """Return the file that `module_of_file` executed as the module of this name, or None."""
    return _FILES.get(name)


@exclusive
def module_of_file(path: str | Path) -> ModuleType:
    """Import a Python file as a module, once per version of the file."""
    file = Path(path).resolve()
    if not file.is_file():
        raise ValueError(f"There is no file {path}.")
    version = sha256(f"{file}:{file.stat().st_mtime_ns}".encode()).hexdigest()[:12]
    name = f"{file.stem}_{version}"
    if name not in sys.modules:
        spec = spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        # Dataclasses and pickle look their module up by name.
        sys.modules[name] = module
        _FILES[name] = file
        FILES_OF_USERS.add(str(file))
        try:
            with neighbours_of(file):
                spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


@borrowing
def neighbours_of(source: str | Path) -> Iterator[None]:
    """Let the code of a file import the modules beside it, as ``python FILE.py`` does; nothing for other sources."""
    if not str(source).endswith(".py"):
        yield
        return
    folder = Path(source).resolve().parent
    for name, home in list(_NEIGHBOURS.items()):
        if home != folder and ((folder / f"{name}.py").is_file() or (folder / name).is_dir()):
            # The module of this name beside another file.
            for module in [module for module in sys.modules if module.partition(".")[0] == name]:
                del sys.modules[module]
            del _NEIGHBOURS[name]
    before, prefix = set(sys.modules), sys.pycache_prefix
    sys.path.insert(0, str(folder))
    if of_data() is not None:
        # The compiled files beside the source may be of other code.
        with suppress(RuntimeError):  # there is no home
            sys.pycache_prefix = str(_states() / "pycache")
    try:
        yield
    finally:
        sys.pycache_prefix = prefix
        with suppress(ValueError):
            sys.path.remove(str(folder))
        for name in sys.modules.keys() - before:
            file = getattr(sys.modules[name], "__file__", None)
            if "." not in name and name not in _FILES and file is not None and folder in Path(file).parents:
                _NEIGHBOURS[name] = folder


def _key(source: str, name: str) -> tuple[str, str]:
    """Return a file, by its absolute path, or a module, and a name in it."""
    return (str(Path(source).resolve()) if source.endswith(".py") else source), name

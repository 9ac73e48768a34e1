"""The environment of a run: which plugins, conftest files and checks took part, and --isolated, which admits the named.

A proof may be started in anybody's folder: a conftest.py, a pytest.ini or a secrets.py there must not change a verdict.
`gpu_ami` starts the validator with `PYTHON_ARGUMENTS`, `ARGUMENTS` and `VARIABLES`, without `CALLERS_VARIABLES`.
Results list the programs (`Program`), and the certificate refuses a run with one that nobody named.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import itertools
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from _pytest.fixtures import FixtureManager
from pluggy import HookImpl

from validator.results import Program

_PACKAGE = Path(__file__).resolve().parent
CHECKS = _PACKAGE / "checks"
_OURS = (_PACKAGE, _PACKAGE.parent / "onhost")  # in a wheel, too, onhost is beside the validator
# Python: -P leaves the working folder out of sys.path. pytest: a configuration file of ours, so that no pytest.ini,
# pyproject.toml, tox.ini or setup.cfg of the caller is read; conftest files of ours and of folders that are named.
PYTHON_ARGUMENTS = ("-P",)
ARGUMENTS = (
    "-c", str(_PACKAGE / "isolated.ini"), f"--rootdir={CHECKS}", f"--confcutdir={CHECKS}", "--import-mode=importlib",
    "--isolated",
)  # fmt: skip
# Variables of the caller with these beginnings do not reach the validator.
CALLERS_VARIABLES = ("PYTEST_", "PYTHON", "_PYTEST")
VARIABLES = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONUNBUFFERED": "1"}
# Where modules are found before a run adds folders to it: the installation, and without -P what the caller adds.
_SEARCHED = tuple(Path(folder).resolve() for folder in sys.path if folder)
_CALLERS_FOLDERS = {Path(folder).resolve() for folder in [".", *os.environ.get("PYTHONPATH", "").split(os.pathsep)]}
# Parts of pytest: one entry with the digest of all of them.
_PYTEST = ("_pytest", "pytest", "pluggy")


def add_option(group: Any) -> None:
    text = "load no conftest file but those in folders of checks that the command line names; only gpu-ami sets it"
    group.addoption("--isolated", action="store_true", help=text)


def admit_named_only(config: pytest.Config) -> None:
    """With --isolated: conftest files load only from named folders, and their modules are found there.

    The manager's method is private; `programs` finds what loads without it, and the certificate then refuses the run.
    """
    if not config.known_args_namespace.isolated:
        return
    os.umask(0o077)  # logs of a host may hold what its users' programs printed
    folders = _named_folders(config, config.known_args_namespace.file_or_dir)
    config.pluginmanager._is_in_confcutdir = functools.partial(_is_below, folders=folders)  # type: ignore[method-assign]
    config.pluginmanager.register(_Confined([folder for folder in folders if folder != CHECKS]))
    # After the standard library, which a module of a named folder therefore cannot replace.
    sys.path += [str(folder) for folder in folders if folder != CHECKS]


class _Confined:
    """A pytest plugin: fixtures and pytest_collection_modifyitems of a named folder's conftest.py are of that folder.

    pytest confines them to the folder only below its rootdir, which is that of the built-in checks. A folder's fixture
    `host` would else be the machine that the built-in checks examine, and its `plan` what they compare it with.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionstart(self) -> Iterator[None]:
        """pytest makes its manager of fixtures, which gives the session those of folders outside its rootdir."""
        flush = FixtureManager._flush_pending_conftests_to_session

        def flush_others(manager: FixtureManager, session: pytest.Session) -> None:
            pending = manager._pending_conftests
            named = {folder: pending.pop(folder) for folder in list(pending) if _is_below(folder, self._folders)}
            flush(manager, session)
            pending.update(named)  # until their folder is collected

        FixtureManager._flush_pending_conftests_to_session = flush_others  # type: ignore[method-assign, assignment]
        try:
            return (yield)
        finally:
            FixtureManager._flush_pending_conftests_to_session = flush  # type: ignore[method-assign]

    def pytest_plugin_registered(self, plugin: object, manager: pytest.PytestPluginManager) -> None:
        file = Path(str(getattr(plugin, "__file__", "")))
        if file.name != "conftest.py" or not _is_below(file, self._folders):
            return
        for hook in manager.hook.pytest_collection_modifyitems.get_hookimpls():
            if hook.plugin is plugin and "items" in hook.argnames:
                hook.function = _of_folder(hook, file.resolve().parent)  # type: ignore[misc]


def _of_folder(hook: HookImpl, folder: Path) -> Callable[..., object]:
    """The hook's function, which gets the items of a folder and no built-in check, and changes no others."""
    function, place = hook.function, hook.argnames.index("items")

    def split(arguments: Sequence[Any]) -> tuple[list[Any], Callable[[], None]]:
        items: list[pytest.Item] = arguments[place]
        before = [item for item in items if item.path.parent != CHECKS and _is_below(item.path, [folder])]
        own = list(before)

        def join() -> None:
            gone = [item for item in before if item not in items]  # deselected while a wrapper waited
            others = [item for item in items if item not in before]
            items[:] = [*others, *(item for item in own if item not in gone)]

        return [*arguments[:place], own, *arguments[place + 1 :]], join

    def call(*arguments: Any) -> object:
        confined, join = split(arguments)
        try:
            return function(*confined)
        finally:
            join()

    def call_wrapper(*arguments: Any) -> Iterator[object]:
        confined, join = split(arguments)
        try:
            return (yield from function(*confined))  # type: ignore[misc, no-any-return]
        finally:
            join()

    return call_wrapper if hook.wrapper or hook.hookwrapper else call


def _is_below(path: Path, folders: Iterable[Path]) -> bool:
    return any(path.resolve().is_relative_to(folder) for folder in folders)


def _named_folders(config: pytest.Config, arguments: Iterable[object]) -> list[Path]:
    """The folders on the command line, resolved. A conftest.py beside a named file is not named."""
    return [path for path in _named(config, arguments) if path.is_dir()]


def _named(config: pytest.Config, arguments: Iterable[object]) -> list[Path]:
    base = config.invocation_params.dir
    return [(base / str(argument).partition("::")[0]).resolve() for argument in arguments]


def is_isolated(config: pytest.Config) -> bool:
    """Whether nothing but the installation and what the command line names could take part."""
    return bool(config.getoption("isolated")) and bool(sys.flags.safe_path)


def file_of(function: Callable[..., object]) -> Path | None:
    """The file that has a function."""
    file = inspect.getsourcefile(inspect.unwrap(function))
    return Path(file).resolve() if file else None


def is_ours(file: Path) -> bool:
    """Whether a file is of this package or of testinfra."""
    import testinfra

    return file.is_relative_to(_PACKAGE) or file.is_relative_to(Path(testinfra.__file__).resolve().parent)


def programs(config: pytest.Config, items: Iterable[pytest.Item]) -> tuple[Program, ...]:
    """Every plugin, conftest file, file of checks and module of elsewhere that took part, with its digest."""
    named = [CHECKS, *_named(config, config.args)]
    modules = _plugin_modules(config)
    pytests = {file for name, file in modules if name.partition(".")[0] in _PYTEST}
    conftests = {file for _, file in modules if file.name == "conftest.py"}
    asked = {*_named_plugins(config), *_plugins_of(conftests, named)}
    listed = [Program("plugin", f"pytest {pytest.__version__}", _digest(sorted(pytests)), True)]
    for name, file in modules:
        if file not in pytests | conftests:
            ours = file.is_relative_to(_PACKAGE) or name.startswith("testinfra.")
            listed.append(Program("plugin", name, _digest([file]), ours or name in asked))
    listed += [_file("conftest", file, named) for file in sorted(conftests)]
    checks = {item.path.resolve() for item in items}
    listed += [_file("checks", file, named) for file in sorted(checks)]
    known = {file for _, file in modules} | checks
    return (*listed, *(_file("module", file, named) for file in sorted(_foreign_modules() - known)))


def _file(kind: str, file: Path, named: Iterable[Path]) -> Program:
    name = file.relative_to(_PACKAGE.parent) if file.is_relative_to(_PACKAGE) else file
    folders = named if kind != "conftest" else [path for path in named if path.is_dir()]
    return Program(kind, str(name), _digest([file]), _is_below(file, folders))


def _plugin_modules(config: pytest.Config) -> list[tuple[str, Path]]:
    """Name and file of the module of each plugin, sorted."""
    plugins = [plugin for _, plugin in config.pluginmanager.list_name_plugin()]
    modules = [plugin if isinstance(plugin, ModuleType) else inspect.getmodule(type(plugin)) for plugin in plugins]
    named = {(module.__name__, getattr(module, "__file__", None)) for module in modules if module is not None}
    return sorted((name, Path(file).resolve()) for name, file in named if file)


def _named_plugins(config: pytest.Config) -> list[str]:
    """What `-p NAME` names."""
    words = [str(word) for word in config.invocation_params.args]
    return [after for word, after in itertools.pairwise(words) if word == "-p"] + [
        word[2:] for word in words if word.startswith("-p") and len(word) > 2
    ]


def _plugins_of(conftests: Collection[Path], named: Iterable[Path]) -> list[str]:
    """What conftest files in named folders ask for in turn."""
    folders = [path for path in named if path.is_dir()]
    asked: list[str] = []
    if not conftests:
        return asked
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and Path(file).resolve() in conftests and _is_below(Path(file), folders):
            names = getattr(module, "pytest_plugins", [])
            asked += [names] if isinstance(names, str) else [str(name) for name in names]
    return asked


def _foreign_modules() -> set[Path]:
    """Files of loaded modules that are neither Python's, an installed package's nor ours."""
    # Ours by their place: in a checkout, which `make prove` works in, the caller's folder is where they are installed.
    installed = [*(folder for folder in _SEARCHED if folder not in _CALLERS_FOLDERS), *_OURS]
    files = set()
    is_installed: dict[str, bool] = {}  # by folder: there are a thousand modules in a hundred folders
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py"):
            folder = file if os.path.islink(file) else os.path.dirname(file)  # noqa: PTH114, PTH120  (a tenth of the time)
            if folder not in is_installed:
                path = Path(folder).resolve()
                is_installed[folder] = any(path.is_relative_to(place) for place in installed)
            if not is_installed[folder]:
                files.add(Path(file).resolve())
    return files


def _digest(files: Iterable[Path]) -> str:
    """`sha256:` of one file; of several, over their names and contents. A file that is gone counts as empty."""
    paths = list(files)
    if len(paths) == 1:
        return f"sha256:{hashlib.sha256(_content(paths[0])).hexdigest()}"
    whole = hashlib.sha256()
    for path in paths:
        whole.update(path.name.encode() + b"\0" + hashlib.sha256(_content(path)).digest())
    return f"sha256:{whole.hexdigest()}"


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""

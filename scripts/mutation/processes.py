"""A mutant's fate: the tests that call the changed function run in a process of its own.

A process that has collected the tests and run them once forks for each mutant (:class:`Warm`). The
fork gives the function its other code and runs its tests, the quickest first, until one fails.
Where the change lies outside a function's code, a fork that has not imported the package imports
it with the change (:func:`verdict_of_import`).
"""

from __future__ import annotations

import contextlib
import gc
import importlib.abc
import importlib.util
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

import hypothesis
import pytest

from scripts.mutation.mutants import Mutant

CHECKOUT = Path(__file__).resolve().parent.parent.parent
SECONDS, BYTES = 30, 4 << 30  # CPU time and memory that a mutant may use beyond the usual


class Baseline(NamedTuple):
    """Of each test: CPU seconds, and the module's functions that it calls."""

    seconds: dict[str, float]
    calls: dict[str, list[str]]

    def tests_of(self, function: str) -> list[str]:
        """Tests that call a function, the quickest first; all where the change is outside one."""
        chosen = [t for t, called in self.calls.items() if not function or function in called]
        return sorted(chosen, key=self.seconds.__getitem__)


def file_of(module: str) -> Path:
    """Source of a module of the package."""
    return CHECKOUT / "fairseq_kerbs" / f"{module}.py"


def in_a_fork(work: Callable[[], Any], seconds: float = 0.0) -> Any:
    """What ``work`` returns (as JSON) in a process of its own, without its output; "timeout" where
    it takes more CPU time, "crash" where it ends otherwise."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                silence = os.open(os.devnull, os.O_RDWR)
                for stream in (0, 1, 2):
                    os.dup2(silence, stream)
                if seconds:
                    _set_limits(seconds)
                answer.write_text(json.dumps(work()))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL):
            return "timeout"
        return json.loads(answer.read_text()) if answer.is_file() else "crash"


def _set_limits(seconds: float) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 5))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def run_pytest(names: Sequence[str], plugin: object) -> int:
    """Status of pytest over these test files."""
    files = [str(CHECKOUT / "tests" / f"test_{name}.py") for name in names]
    options = ["-x", "-q", "-s", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", "not slow"]
    options += ["--tb=no", "--assert=plain"]
    return int(pytest.main([*options, "--rootdir", str(CHECKOUT), *files], plugins=[plugin]))


class Warm:
    """Plugin of pytest: runs the tests once as they are, then again in a fork for each mutant,
    in which the code of one function is another.

    Attributes:
        failed: the test that failed last.
        left: numbers of the mutants that are more than another code of a function.
    """

    def __init__(
        self, module: str, mutants: list[Mutant], note: Callable[[Mutant, str], None]
    ) -> None:
        self.module, self.mutants, self._note = module, mutants, note
        self.failed = ""
        self.left: list[int] = []
        self.baseline = Baseline({}, {})

    def pytest_configure(self) -> None:
        # after tests/conftest.py and before the tests: a failure is enough, it need not be small
        settings = hypothesis.settings
        phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
        settings.register_profile("mutation", settings.get_profile("project"), phases=phases)
        settings.load_profile("mutation")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = report.nodeid

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            self.failed = "collection"
            return True
        items = {item.nodeid: item for item in session.items}
        for name, item in items.items():
            self._measure(name, item)
            if self.failed:
                return True
        functions = _live_functions(self.module)
        killers: Counter[str] = Counter()
        for number, mutant in enumerate(self.mutants):
            found = self._verdict(mutant, items, functions, killers)
            if found == "left":
                self.left.append(number)
                continue
            killers[found] += 1
            self._note(mutant, found)
        return True

    def _measure(self, name: str, item: pytest.Item) -> None:
        file, called = str(file_of(self.module)), set()

        def watch(frame: FrameType, event: str, _: Any) -> None:
            code = frame.f_code
            if event == "call" and code.co_filename == file:
                called.add(code.co_qualname.partition(".<locals>")[0])

        begun = time.process_time()
        sys.setprofile(watch)
        _run(item)
        sys.setprofile(None)
        self.baseline.seconds[name] = time.process_time() - begun
        self.baseline.calls[name] = sorted(called)

    def _verdict(
        self,
        mutant: Mutant,
        items: dict[str, pytest.Item],
        functions: dict[str, list[FunctionType]],
        killers: Counter[str],
    ) -> Any:
        code = _code_of(mutant, self.module)
        live = functions.get(mutant.function, [])
        if code is None or not live or any(code == function.__code__ for function in live):
            return "left"  # outside a function, or in its signature
        if any(code.co_freevars != function.__code__.co_freevars for function in live):
            return "left"
        tests = self.baseline.tests_of(mutant.function)
        usual = sum(self.baseline.seconds[test] for test in tests)
        # what has killed often comes first, if it is quick
        tests.sort(key=lambda test: self.baseline.seconds[test] / (1 + killers[test]))

        def work() -> str:
            for function in live:
                function.__code__ = code
            for test in tests:
                _run(items[test])
                if self.failed:
                    return self.failed
            return "survived"

        return in_a_fork(work, 3 * usual + SECONDS)


def _run(item: pytest.Item) -> None:
    """Run a test with all its fixtures made afresh."""
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)


def _live_functions(module: str) -> dict[str, list[FunctionType]]:
    """The functions of a module that exist in this process, by name, whatever decorates them."""
    file = str(file_of(module))
    found: dict[str, list[FunctionType]] = {}
    for thing in gc.get_objects():
        if isinstance(thing, FunctionType) and thing.__code__.co_filename == file:
            found.setdefault(thing.__code__.co_qualname, []).append(thing)
    return found


def _code_of(mutant: Mutant, module: str) -> CodeType | None:
    """Compiled code of the function that a mutant changes; None outside functions."""
    waiting = [compile(mutant.source, str(file_of(module)), "exec", dont_inherit=True)]
    while mutant.function and waiting:
        code = waiting.pop()
        if code.co_qualname == mutant.function:
            return code
        waiting += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return None


class Replaced(importlib.abc.MetaPathFinder):
    """Finds one module of the package with another text."""

    def __init__(self, module: str, source: str) -> None:
        self.name, self.file, self.source = f"fairseq_kerbs.{module}", file_of(module), source

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        file, source = str(self.file), self.source

        class Loader(SourceFileLoader):
            def get_code(self, fullname: str) -> CodeType:
                return compile(source, file, "exec", dont_inherit=True)

        return importlib.util.spec_from_file_location(fullname, file, loader=Loader(fullname, file))


class Chosen:
    """Plugin of pytest: keeps these tests, in this order, and knows which failed."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.order = {test: place for place, test in enumerate(tests)}
        self.failed = ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self.order]
        items.sort(key=lambda item: self.order[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = report.nodeid


def verdict_of_import(module: str, mutant: Mutant, names: Sequence[str], baseline: Baseline) -> Any:
    """What becomes of a mutant when the package is imported with it."""
    tests = baseline.tests_of(mutant.function)

    def work() -> str:
        sys.meta_path.insert(0, Replaced(module, mutant.source))
        chosen = Chosen(tests)
        used = [name for name in names if any(f"test_{name}.py::" in test for test in tests)]
        return "survived" if run_pytest(used, chosen) == 0 else chosen.failed or "import"

    usual = sum(baseline.seconds[test] for test in tests)
    return in_a_fork(work, 3 * usual + SECONDS) if tests else "survived"

"""The build of the fairseq wheel: edit rules, checks that stop it, the archive it starts from."""

from __future__ import annotations

import ast
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import textwrap
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

WHEEL_FOLDER = Path(__file__).resolve().parents[2] / "scripts" / "fairseq_wheel"
sys.path.insert(0, str(WHEEL_FOLDER))

from fairseq_build import rules, sdist, toolchain  # noqa: E402
from fairseq_build.edits import EDITS, VERSION  # noqa: E402
from fairseq_build.rules import Edit, EditError, Rule, Source, apply_edits  # noqa: E402

MODULE = textwrap.dedent(
    '''
    import torch


    class Layer(Base):
        """Ä layer."""

        def __init__(self, size):
            super().__init__()
            # the fast path needs copies
            self.copy = zeros(
                size,
            )
            if size > 3:
                self.flag = True
            elif size > 2:
                self.flag = None
            else:
                self.flag = False
            self.size = size

        def forward(self, x):
            if self.flag and x.dim() == 3:
                return fast(x)
            else:
                # the slow path
                if x.any():
                    x = x + 1

            return x
    '''
).lstrip()


def apply(rule: Rule, source: str, *arguments: str) -> tuple[str, int]:
    text = Source(source)
    found = list(rule(text, *arguments))
    return text.edited(found), len(found)


def body_of(source: str, name: str) -> str:
    """Source of the function `name`, comments included, without common indentation."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            lines = source.splitlines()[node.lineno : node.end_lineno]
            return textwrap.dedent("\n".join(lines)).strip()
    raise AssertionError(name)


RENAME = (rules.rename, "np.int", "int")
IMPORT = (rules.add_import, "read", "a.b")
ADD = (rules.set_keyword, "load", "k", "0")
CHANGE = (rules.set_keyword, "Wrapper", "ids", "None if cpu else {}")
DROP = (rules.set_keyword, "compose", "strict", "")
LINE = (rules.change_line, "# @package _group_", "")
FUTURE = '"""Text."""\nfrom __future__ import annotations\n'


@pytest.mark.parametrize(
    ("edit", "before", "after", "places"),
    [
        (RENAME, "a = np.int(3)", "a = int(3)", 1),
        (RENAME, "a = np.int64(3)", None, 0),
        (RENAME, "a = my.np.int", None, 0),
        (RENAME, "a = 'np.int'  # np.int", None, 0),
        (RENAME, "a = {'ü': np.int, 'b': [np.int]}", "a = {'ü': int, 'b': [int]}", 2),
        (IMPORT, f"{FUTURE}import os\nx = read(read(s))\n",
         f"{FUTURE}from a.b import read\nimport os\nx = read(read(s))\n", 1),
        (IMPORT, "import os\nfile.read()\n", None, 0),
        (ADD, "load()", "load(k=0)", 1),
        (ADD, "load(f)", "load(f, k=0)", 1),
        (ADD, "load(f,)", "load(f, k=0)", 1),
        (ADD, "load((f))", "load((f), k=0)", 1),
        (ADD, "load(*a, x=(lambda s: s))", "load(*a, x=(lambda s: s), k=0)", 1),
        (ADD, "load(x=1, *a)", "load(x=1, *a, k=0)", 1),
        (ADD, "load(\n    f,  # , ü file\n)", "load(\n    f, k=0  # , ü file\n)", 1),
        (ADD, "load(load(f))", "load(load(f, k=0), k=0)", 2),
        (ADD, "load(f, k=1)", None, 0),
        (ADD, "other.load(f)", None, 0),
        (CHANGE, "Wrapper(m, ids=[args.id], b=1)",
         "Wrapper(m, ids=None if cpu else [args.id], b=1)", 1),
        (CHANGE, "Wrapper(m, b=1)", None, 0),
        (DROP, 'compose("c", o=o, strict=False)', 'compose("c", o=o)', 1),
        (DROP, 'compose("c", strict=False, o=o)', None, 0),
        (LINE, "# @package _group_\na: 1\n", "\na: 1\n", 1),
        (LINE, "a: 1 # @package _group_\n", None, 0),
        ((rules.add_after_assignment, "a", "check(a)"),
         "if b:\n    a = f(\n        1)\nelse:\n    a.b = 2\n",
         "if b:\n    a = f(\n        1)\n    check(a)\nelse:\n    a.b = 2\n", 1),
        ((rules.write, "f", "asserts", "check(a)"),
         "def f(a):\n    assert a, (\n        1)\n    return a\n",
         "def f(a):\n    check(a)\n    return a\n", 1),
    ],
)  # fmt: skip
def test_rules(edit: tuple[Rule, str], before: str, after: str | None, places: int) -> None:
    rule, *arguments = edit
    assert apply(rule, before, *arguments) == (before if after is None else after, places)


def test_a_body_is_replaced() -> None:
    edited, places = apply(rules.write, MODULE, "Layer.forward", "body", "\n    return x\n")
    assert places == 1
    assert body_of(edited, "forward") == "return x"
    assert body_of(edited, "__init__") == body_of(MODULE, "__init__")


def test_a_class_gets_a_method() -> None:
    edited, places = apply(rules.write, MODULE, "Layer", "end", "def extra(self): ...")
    (layer,) = [node for node in ast.parse(edited).body if isinstance(node, ast.ClassDef)]
    methods = [node.name for node in layer.body if isinstance(node, ast.FunctionDef)]
    assert (places, methods) == (1, ["__init__", "forward", "extra"])


def test_assume_false_puts_the_else_branch_in_place() -> None:
    edited, places = apply(rules.assume_false, MODULE, "Layer.forward", "self.flag")
    assert places == 1
    assert body_of(edited, "forward") == "if x.any():\n    x = x + 1\n\nreturn x"


@pytest.mark.parametrize(
    ("test", "dead"),
    [
        ("flag", True),
        ("flag and a", True),
        ("a and (b and flag)", True),
        ("flag or other", True),
        ("flag or a", False),
        ("not flag", False),
        ("a", False),
    ],
)
def test_assume_false_drops_only_what_cannot_run(test: str, dead: bool) -> None:
    source = f"def f():\n    if {test}:\n        run()\n    return 1\n"
    edited, places = apply(rules.assume_false, source, "f", "flag", "other")
    assert places == dead
    assert ("run()" in edited) is not dead


def test_drop_assignments_drops_ifs_that_do_nothing_else_and_their_comments() -> None:
    edited, places = apply(
        rules.drop_assignments, MODULE, "Layer.__init__", "self.copy", "self.flag"
    )
    assert places == 2
    assert body_of(edited, "__init__") == "super().__init__()\nself.size = size"
    assert body_of(edited, "forward") == body_of(MODULE, "forward")


def test_places_are_counted_over_all_files(tmp_path: Path) -> None:
    names = ("a.py", "b.py", "c.txt")
    for name in names:
        (tmp_path / name).write_text("x = np.int\n")
    apply_edits(tmp_path, [Edit("*.py", 2, rules.rename, ("np.int", "int"))])
    assert [(tmp_path / name).read_text() for name in names] == [
        "x = int\n", "x = int\n", "x = np.int\n"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("places", "new", "message"),
    [
        (0, "int", r"rename\('np.int', 'int'\) found 1 places instead of 0 in \*\.py"),
        (2, "int", "found 1 places instead of 2 in "),
        (1, "1 +", r"leaves .*a\.py with a syntax error"),
    ],
)
def test_what_stops_the_build(tmp_path: Path, places: int, new: str, message: str) -> None:
    (tmp_path / "a.py").write_text("x = np.int\n")
    with pytest.raises(EditError, match=message):
        apply_edits(tmp_path, [Edit("*.py", places, rules.rename, ("np.int", new))])


def test_the_edits_refuse_another_source(tmp_path: Path) -> None:
    with pytest.raises(EditError, match="found 0 places instead of"):
        apply_edits(tmp_path, EDITS)


def archive(path: Path) -> str:
    """Write a source archive with one file and return its checksum."""
    content = b"pass\n"
    with tarfile.open(path, "w:gz") as tar:
        member = tarfile.TarInfo("fairseq-0.12.2/setup.py")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_given_archive_is_checked_and_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tmp_path / "mine.tar.gz"
    checksum = archive(given)
    monkeypatch.setenv(sdist.FILE_VARIABLE, str(given))
    assert sdist.fetch_sdist(tmp_path, checksum) == given
    assert (sdist.unpack_sdist(given, tmp_path) / "setup.py").read_text() == "pass\n"


def test_an_archive_with_another_checksum_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tmp_path / "fairseq-0.12.2.tar.gz"
    checksum = archive(given)
    monkeypatch.setenv(sdist.FILE_VARIABLE, str(given))
    with pytest.raises(sdist.SdistError) as error:
        sdist.fetch_sdist(tmp_path)
    assert str(given) in str(error.value)
    assert checksum in str(error.value)
    assert sdist.SHA256 in str(error.value)


def test_a_given_archive_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(sdist.FILE_VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(sdist.SdistError, match=r"SDIST names .*absent, which is not a file"):
        sdist.fetch_sdist(tmp_path)


def test_nested_pip_is_freed_of_the_outer_build(tmp_path: Path) -> None:
    outer = {
        "_PYPROJECT_HOOKS_BUILD_BACKEND": "fairseq_build.backend",
        "PIP_CONSTRAINT": "pins.txt",
        "PIP_REQUIRE_VIRTUALENV": "1",
        "PIP_INDEX_URL": "https://index.example/simple",
        "UV_DEFAULT_INDEX": "https://other.example/simple",
        "PYTHONPATH": "before",
        "HOME": "/home/user",
    }
    assert sdist.nested_pip_environment(outer, tmp_path) == {
        "PIP_INDEX_URL": "https://index.example/simple",
        "UV_DEFAULT_INDEX": "https://other.example/simple",
        "PYTHONPATH": f"{tmp_path}{os.pathsep}before",
        "HOME": "/home/user",
    }


def test_the_index_of_uv_serves_where_pip_has_none(tmp_path: Path) -> None:
    environment = sdist.nested_pip_environment({"UV_DEFAULT_INDEX": "https://u.example"}, tmp_path)
    assert environment["PIP_INDEX_URL"] == "https://u.example"


def test_a_failed_build_ends_with_one_sentence(tmp_path: Path) -> None:
    """The sentence of a refused archive is the last line, without a traceback."""
    given = tmp_path / "fairseq-0.12.2.tar.gz"
    archive(given)
    code = "from fairseq_build.backend import build_wheel; build_wheel('.')"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(WHEEL_FOLDER), sdist.FILE_VARIABLE: str(given)},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert result.stderr.splitlines()[-1].startswith(f"fairseq_wheel: {given} has the sha256 ")


def test_missing_tools_are_named_with_their_debian_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("CXX", "true -pthread")
    missing = f"{tmp_path / 'Python.h'} is missing: install the Debian package python{version}-dev"
    assert toolchain.missing_tool() == missing
    (tmp_path / "Python.h").touch()
    assert toolchain.missing_tool() is None
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    assert toolchain.missing_tool() == (
        "there is no C++ compiler (no-such-compiler): install the Debian package g++"
    )
    monkeypatch.setattr("fairseq_build.toolchain.NEWEST", (3, 0))
    assert "is not supported: use Python 3.11 to" in str(toolchain.missing_tool())


def test_the_version_satisfies_the_plugin() -> None:
    assert VERSION in SpecifierSet("==0.12.2")
    assert VERSION != "0.12.2"

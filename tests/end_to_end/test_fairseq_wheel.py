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

from fairseq_build import expression_rules as expressions  # noqa: E402
from fairseq_build import sdist, toolchain  # noqa: E402
from fairseq_build import statement_rules as statements  # noqa: E402
from fairseq_build.applying import Edit, EditError, Rule, apply_edits  # noqa: E402
from fairseq_build.edits import EDITS, VERSION  # noqa: E402

MODULE = textwrap.dedent(
    '''
    import torch
    from old.place import load
    from old import place


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


def apply(rule: Rule, source: str) -> tuple[str, int]:
    edited, places = rule.apply(source)
    ast.parse(edited)
    assert rule.clue in source or places == 0
    return edited, places


def body_of(source: str, name: str) -> str:
    """Source of the function `name`, comments included, without common indentation."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            lines = source.splitlines()[node.lineno : node.end_lineno]
            return textwrap.dedent("\n".join(lines)).strip()
    raise AssertionError(name)


@pytest.mark.parametrize(
    ("before", "after", "places"),
    [
        ("a = np.int(3)", "a = int(3)", 1),
        ("a = np.int64(3)", "a = np.int64(3)", 0),
        ("a = my.np.int", "a = my.np.int", 0),
        ("a = 'np.int'  # np.int", "a = 'np.int'  # np.int", 0),
        ("a = {'ü': np.int, 'b': [np.int]}", "a = {'ü': int, 'b': [int]}", 2),
    ],
)
def test_rename_expression(before: str, after: str, places: int) -> None:
    assert apply(expressions.RenameExpression("np.int", "int"), before) == (after, places)


@pytest.mark.parametrize(
    ("before", "after", "places"),
    [
        (
            '"""Text."""\nfrom __future__ import annotations\nimport os\nx = eval(eval(s))\n',
            '"""Text."""\nfrom __future__ import annotations\nfrom a.b import read\nimport os\n'
            "x = read(read(s))\n",
            2,
        ),
        ("import os\nmodel.eval()\n", "import os\nmodel.eval()\n", 0),
    ],
)
def test_use_imported(before: str, after: str, places: int) -> None:
    assert apply(expressions.UseImported("eval", "a.b", "read"), before) == (after, places)


def test_rename_module_changes_imports_from_exactly_that_module() -> None:
    edited, places = apply(expressions.RenameModule("old.place", "new"), MODULE)
    assert places == 1
    assert "from new import load\nfrom old import place\n" in edited


@pytest.mark.parametrize(
    ("before", "after", "places"),
    [
        ("load()", "load(k=0)", 1),
        ("load(f)", "load(f, k=0)", 1),
        ("load(f,)", "load(f, k=0)", 1),
        ("load((f))", "load((f), k=0)", 1),
        ("load(f, x=(lambda s: s))", "load(f, x=(lambda s: s), k=0)", 1),
        ("load(\n    f,  # , a file)\n)", "load(\n    f, k=0  # , a file)\n)", 1),
        ("load(load(f))", "load(load(f, k=0), k=0)", 2),
        ("load(f, k=1)", "load(f, k=1)", 0),
        ("other.load(f)", "other.load(f)", 0),
    ],
)
def test_add_keyword(before: str, after: str, places: int) -> None:
    assert apply(expressions.AddKeyword("load", "k", "0"), before) == (after, places)


def test_change_keyword_can_use_the_old_value() -> None:
    rule = expressions.ChangeKeyword("Wrapper", "ids", "None if cpu else {}")
    assert apply(rule, "Wrapper(m, ids=[args.id], b=1)") == (
        "Wrapper(m, ids=None if cpu else [args.id], b=1)",
        1,
    )
    assert apply(rule, "Wrapper(m, b=1)") == ("Wrapper(m, b=1)", 0)


def test_drop_last_keyword() -> None:
    rule = expressions.DropLastKeyword("compose", "strict")
    assert apply(rule, 'compose("c", o=o, strict=False)') == ('compose("c", o=o)', 1)
    assert apply(rule, 'compose("c", strict=False, o=o)')[1] == 0


def test_change_line_takes_whole_lines_only() -> None:
    rule = expressions.ChangeLine("# @package _group_", "")
    assert rule.apply("# @package _group_\na: 1\n") == ("\na: 1\n", 1)
    assert rule.apply("a: 1 # @package _group_\n")[1] == 0


def test_replace_body() -> None:
    edited, places = apply(statements.ReplaceBody("Layer.forward", "\n    return x\n"), MODULE)
    assert places == 1
    assert body_of(edited, "forward") == "return x"
    assert body_of(edited, "__init__") == body_of(MODULE, "__init__")


def test_append_to_body_of_a_class() -> None:
    edited, places = apply(statements.AppendToBody("Layer", "def extra(self): ..."), MODULE)
    (layer,) = [node for node in ast.parse(edited).body if isinstance(node, ast.ClassDef)]
    assert places == 1
    assert [node.name for node in layer.body if isinstance(node, ast.FunctionDef)] == [
        "__init__",
        "forward",
        "extra",
    ]


def test_add_after_assignment_keeps_the_indentation() -> None:
    rule = statements.AddAfterAssignment("a", "check(a)")
    before = "if b:\n    a = f(\n        1)\nelse:\n    a.b = 2\n"
    after = "if b:\n    a = f(\n        1)\n    check(a)\nelse:\n    a.b = 2\n"
    assert apply(rule, before) == (after, 1)


def test_assume_false_puts_the_else_branch_in_place() -> None:
    rule = statements.AssumeFalse("Layer.forward", frozenset({"self.flag"}))
    edited, places = apply(rule, MODULE)
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
    edited, places = apply(statements.AssumeFalse("f", frozenset({"flag", "other"})), source)
    assert places == dead
    assert ("run()" in edited) is not dead


def test_drop_assignments_drops_ifs_that_do_nothing_else_and_their_comments() -> None:
    rule = statements.DropAssignments("Layer.__init__", frozenset({"self.copy", "self.flag"}))
    edited, places = apply(rule, MODULE)
    assert places == 2
    assert body_of(edited, "__init__") == "super().__init__()\nself.size = size"
    assert body_of(edited, "forward") == body_of(MODULE, "forward")


@pytest.mark.parametrize("places", [0, 2])
def test_another_number_of_places_stops_the_build(tmp_path: Path, places: int) -> None:
    (tmp_path / "a.py").write_text("x = np.int\n")
    edit = Edit("*.py", expressions.RenameExpression("np.int", "int"), places)
    with pytest.raises(EditError, match=f"found 1 places instead of {places} in "):
        apply_edits(tmp_path, [edit])


def test_places_are_counted_over_all_files(tmp_path: Path) -> None:
    for name in ("a.py", "b.py", "c.txt"):
        (tmp_path / name).write_text("x = np.int\n")
    apply_edits(tmp_path, [Edit("*.py", expressions.RenameExpression("np.int", "int"), 2)])
    texts = [(tmp_path / name).read_text() for name in ("a.py", "b.py", "c.txt")]
    assert texts == ["x = int\n", "x = int\n", "x = np.int\n"]


def test_an_edit_that_breaks_the_syntax_stops_the_build(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = np.int\n")
    edit = Edit("*.py", expressions.RenameExpression("np.int", "1 +"), 1)
    with pytest.raises(EditError, match=r"leaves a\.py with a syntax error"):
        apply_edits(tmp_path, [edit])
    assert (tmp_path / "a.py").read_text() == "x = np.int\n"


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

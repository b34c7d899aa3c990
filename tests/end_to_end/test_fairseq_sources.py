"""No name that fairseq's sources read from Python, numpy, torch and others has been removed.

Every ``import`` of the installed fairseq and every dotted name that begins with an imported module
is looked up in what is installed. What a method or a keyword is called cannot be looked up: those
that were removed are searched for by their text.
"""

import ast
import importlib
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import fairseq
import fairseq_cli
import pytest

FOLDERS = [Path(str(package.__file__)).parent for package in (fairseq, fairseq_cli)]
SOURCES = sorted(path for folder in FOLDERS for path in folder.rglob("*.py"))
LIBRARIES = {
    "bitarray",
    "hydra",
    "numpy",
    "omegaconf",
    "regex",
    "sacrebleu",
    "torch",
    "tqdm",
    *sys.stdlib_module_names,
}
GONE_FROM_PYTHON = {  # until 3.13; the Python that runs the tests may still have them
    "aifc",
    "asynchat",
    "asyncore",
    "audioop",
    "cgi",
    "cgitb",
    "chunk",
    "crypt",
    "distutils",
    "imghdr",
    "imp",
    "lib2to3",
    "mailcap",
    "msilib",
    "nis",
    "nntplib",
    "ossaudiodev",
    "pipes",
    "smtpd",
    "sndhdr",
    "spwd",
    "sunau",
    "telnetlib",
    "uu",
    "xdrlib",
}
HARMLESS = {
    ("fairseq/data/data_utils.py", "collections.Iterable"): "after an ImportError of the new place",
    ("fairseq/checkpoint_utils.py", "omegaconf._utils.is_primitive_type"): "for omegaconf < 2.2",
    ("fairseq/dataclass/utils.py", "omegaconf._utils.is_primitive_type"): "behind a hasattr",
    ("fairseq/scoring/tokenizer.py", "sacrebleu.tokenizers.TOKENIZERS"): "for sacrebleu < 2",
    ("fairseq/tasks/translation.py", "sacrebleu.compute_bleu"): "after an ImportError",
    ("fairseq/tasks/audio_finetuning.py", "sacrebleu.compute_bleu"): "after an ImportError",
    (
        "fairseq/model_parallel/models/pipeline_parallel_transformer/model.py",
        "torch.distributed.pipeline",
    ): "after an ImportError it asks for fairscale's; needs GPUs",
}
"""Names that are not there, by file, and why no program fails by them."""
GONE_IN_EXAMPLES = {
    "bitarray.util.rindex",
    "numpy.lib.format._read_array_header",
    "sacrebleu.compute_bleu",
    "sacrebleu.tokenize_zh",
    "torch.distributed.all_reduce_multigpu",
    "torch.set_deterministic",
    "torch.testing._internal.common_utils",
}
"""Of fairseq/examples, which no program imports: the wheel ships them as the release does."""
TEXTS = {
    r"\binterpolation=(?!cv2\.)": "numpy 2.4: a keyword of percentile",
    r"\bnormed=": "numpy 1.24: a keyword of histogram",
    r"\.(tostring|itemset|newbyteorder|ptp)\(": "numpy 2.0 to 2.3: methods of arrays",
    r"\btostring_rgb\(": "matplotlib 3.10",
    r"np\.fromstring\((?!.*sep=\" \")": "numpy 2.3: of bytes",
    r"np\.array\(.*copy=False": "numpy 2.0: an error if it needs a copy",
    r"\.(symeig|lstsq|solve)\(": "torch 2.0: methods of tensors",
    r"torch\.load\((?!.*weights_only)[^)\n]*\)\s*$": "torch 2.6: refuses configurations",
    r"random\.sample\((set|\{)": "Python 3.11: of sets",
    r"assertEquals\(": "Python 3.12",
    r"locale\.format\(": "Python 3.12",
}
"""What was removed that no look-up finds."""


def dotted_names(source: str) -> Iterator[str]:
    """What a source imports, and dotted names that begin with an imported module."""
    tree = ast.parse(source)
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
                top = alias.name.split(".")[0]
                modules[alias.asname or top] = alias.name if alias.asname else top
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if alias.name != "*":
                    yield f"{node.module}.{alias.name}"
                    modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        parts = []
        inner: ast.AST = node
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if parts and isinstance(inner, ast.Name) and inner.id in modules:
            yield ".".join([modules[inner.id], *reversed(parts)])


def removed(name: str) -> str | None:
    """The part of a name that is not there, None if all of it is or nothing can be said of it."""
    top, *parts = name.split(".")
    if top in GONE_FROM_PYTHON:
        return top
    if top not in LIBRARIES:
        return None
    found: object = importlib.import_module(top)
    known = top
    for part in parts:
        known = f"{known}.{part}"
        if not hasattr(found, part):
            try:
                found = importlib.import_module(known)
            except ImportError:
                return known
        else:
            found = getattr(found, part)
        if not isinstance(found, (ModuleType, type)):
            return None
    return None


def place(path: Path) -> str:
    return str(path.relative_to(FOLDERS[0].parent))


def test_every_name_is_there() -> None:
    missing = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for path in SOURCES:
            for name in {*dotted_names(path.read_text(encoding="utf-8"))}:
                part = removed(name)
                if part is not None:
                    missing.add((place(path), part))
    examples = {entry for entry in missing if entry[0].startswith("fairseq/examples/")}
    assert {part for _, part in examples} <= GONE_IN_EXAMPLES
    assert missing - examples == {*HARMLESS}


@pytest.mark.parametrize("pattern", TEXTS)
def test_no_removed_text_is_there(pattern: str) -> None:
    found = [
        f"{place(path)}: {match[0]}"
        for path in SOURCES
        if not place(path).startswith("fairseq/examples/")
        for match in re.finditer(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert not found, TEXTS[pattern]


def test_the_search_finds_what_was_removed() -> None:
    source = (
        "import numpy as np, torch, imp\nfrom collections import Iterable\n"
        "np.int(1)\nnp.lib.format.none(2)\ntorch.nn.functional.relu(x)\ntorch.cuda.amp.none\n"
        "np.array(1).any_method()\n"
    )
    found = {removed(name) for name in dotted_names(source)} - {None}
    assert found == {
        "numpy.int",
        "numpy.lib.format.none",
        "torch.cuda.amp.none",
        "collections.Iterable",
        "imp",
    }

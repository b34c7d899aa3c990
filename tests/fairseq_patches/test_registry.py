"""Every change of fairseq's behaviour is in one table, has a reason, and is made once."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fairseq_kerbs
import fairseq_kerbs.models
from fairseq_kerbs import fairseq_patches
from fairseq_kerbs.fairseq_patches.registry import PATCHES, Patch

PACKAGE = Path(fairseq_kerbs.__file__).parent
CHANGED = {
    "fairseq.checkpoint_utils.load_checkpoint",
    "fairseq.checkpoint_utils.load_checkpoint_to_cpu",
    "fairseq.checkpoint_utils.load_model_ensemble",
    "fairseq.checkpoint_utils.torch_persistent_save",
    "fairseq.checkpoint_utils.verify_checkpoint_directory",
    "fairseq.file_io.PathManager.copy",
    "fairseq.models.ema.ema.EMA.__init__",
    "fairseq.options.add_generation_args",
    "fairseq.trainer.NanDetector",
    "fairseq.trainer.Trainer.clip_grad_norm",
    "fairseq.trainer.Trainer.load_checkpoint",
    "fairseq.trainer.Trainer.train_step",
}


def name_of(patch: Patch) -> str:
    owner = patch.owner
    module = f"{owner.__module__}.{owner.__qualname__}" if isinstance(owner, type) else ""
    return f"{module or owner.__name__}.{patch.name}"


def test_what_is_changed_is_listed_with_its_reason() -> None:
    assert {name_of(patch) for patch in PATCHES if patch.name != "eval"} == CHANGED
    for patch in PATCHES:
        assert patch.applied
        assert len(patch.reason) > 20


def test_a_second_time_changes_nothing() -> None:
    before = [getattr(patch.owner, patch.name) for patch in PATCHES]
    fairseq_patches.apply()
    after = [getattr(patch.owner, patch.name) for patch in PATCHES]
    assert all(one is other for one, other in zip(before, after, strict=True))
    assert len(PATCHES) == len(before)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.stem)
def test_nothing_else_is_assigned_to_a_module_or_class_of_fairseq(path: Path) -> None:
    """Anywhere in the package: what is imported from fairseq keeps its attributes."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = {
        alias.asname or alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        and str(getattr(node, "module", None) or node.names[0].name).startswith("fairseq")
        and "fairseq_kerbs" not in str(getattr(node, "module", None) or node.names[0].name)
        for alias in node.names
    }
    changed = [
        ast.unparse(target)
        for node in ast.walk(tree)
        for target in (node.targets if isinstance(node, ast.Assign) else [])
        if isinstance(target, ast.Attribute) and ast.unparse(target).split(".")[0] in imported
    ]
    changed += [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "setattr"
        and ast.unparse(node.args[0]).split(".")[0] in imported
    ]
    assert changed == []

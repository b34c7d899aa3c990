"""Every change of fairseq's behaviour is in one table, has a reason, and is made once."""

from __future__ import annotations

import ast
import re
from pathlib import Path

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
    "fairseq.distributed.utils.call_main",
    "fairseq.file_io.PathManager.copy",
    "fairseq.models.ema.ema.EMA.__init__",
    "fairseq.ngram_repeat_block.NGramRepeatBlock._no_repeat_ngram",
    "fairseq.optim.amp_optimizer.AMPOptimizer.step",
    "fairseq.options.add_generation_args",
    "fairseq.options.parse_args_and_arch",
    "fairseq.trainer.NanDetector",
    "fairseq.trainer.Trainer._build_optimizer",
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
    assert all(patch.applied and len(patch.reason) > 20 for patch in PATCHES)


def test_a_second_time_changes_nothing() -> None:
    before = [getattr(patch.owner, patch.name) for patch in PATCHES]
    fairseq_patches.apply()
    after = [getattr(patch.owner, patch.name) for patch in PATCHES]
    assert all(one is other for one, other in zip(before, after, strict=True))


def test_nothing_else_is_assigned_to_a_module_or_class_of_fairseq() -> None:
    """Anywhere in the package: what is imported from fairseq keeps its attributes."""
    for path in PACKAGE.rglob("*.py"):
        assert not assigned(ast.parse(path.read_text(encoding="utf-8"))), path


def assigned(tree: ast.AST) -> list[str]:
    """Assignments to attributes of what a module imports from fairseq."""
    imported = {
        alias.asname or alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if re.match(r"fairseq(?!_kerbs)", getattr(node, "module", None) or alias.name)
    }
    targets: list[ast.expr] = [
        target
        for node in ast.walk(tree)
        for target in (node.targets if isinstance(node, ast.Assign) else [])
        if isinstance(target, ast.Attribute)
    ]
    targets += [
        node.args[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr"
    ]
    return [ast.unparse(one) for one in targets if ast.unparse(one).split(".")[0] in imported]


def test_such_an_assignment_would_be_found() -> None:
    text = "import fairseq.utils\nfrom fairseq import trainer as t\n{}"
    for line in ("t.Trainer.x = 1", "setattr(t, 'x', 1)", "fairseq.utils.x = 1"):
        assert assigned(ast.parse(text.format(line)))
    assert not assigned(ast.parse(text.format("x = t.Trainer")))

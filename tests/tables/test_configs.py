"""Every configuration and row of a table: fairseq takes its flags, its model trains and decodes."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import optim, options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.optim import lr_scheduler

import fairseq_kerbs.criterions
import fairseq_kerbs.models  # noqa: F401  (both register)
from fairseq_kerbs.cli import main
from fairseq_kerbs.configurations import CONFIGS, Flags, load_experiment, program_arguments
from fairseq_kerbs.output_layers import KerbsOutputLayer, OutputLayer
from fairseq_kerbs.tables.description import SCALES, TABLES, load_table
from fairseq_kerbs.tables.runs import Paths, plan_runs, run_job
from tests.helpers.fairseq_fixtures import make_batch

WORDS = 40
WIDTHS = ("embed-dim", "ffn-embed-dim")
# sizes alone: layers, heads and what the configuration is about stay as they are
SIZES = {
    "transformer": [f"{side}-{name}" for side in ("encoder", "decoder") for name in WIDTHS],
    "recurrent": ["hidden-size", "embed-dim"],
    "transformer_lm": [f"decoder-{name}" for name in WIDTHS],
}


ALL_TABLES = [
    load_table(str(path)) for path in sorted(TABLES.glob("*.yaml")) if path.stem != "data"
]
CONFIGURATIONS = [path for path in sorted(CONFIGS.glob("**/*.yaml")) if path.parent != TABLES]


def complete_configurations() -> Iterator[Any]:
    """Flags of all configurations but those that are only there to be extended."""
    for path in CONFIGURATIONS:
        train = load_experiment(path).train
        if "arch" in train and path.stem not in ("base", "small_base"):
            yield pytest.param(train, id=str(path.relative_to(CONFIGS).with_suffix("")))


def rows_of_tables() -> Iterator[Any]:
    """Flags of all rows that change a configuration, each once."""
    for scale in SCALES:
        for run in plan_runs(ALL_TABLES, scale)[1].values():
            if run.flags and run.seed == 1:
                yield pytest.param({**load_experiment(run.config).train, **run.flags}, id=run.id)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dictionaries of :data:`WORDS` words, fairseq's four specials included."""
    folder = tmp_path_factory.mktemp("data")
    text = "".join(f"w{number} {WORDS - number}\n" for number in range(WORDS - 4))
    for name in ("dict.de.txt", "dict.en.txt", "dict.txt"):
        (folder / name).write_text(text)
    return folder


def parse(train: Flags, data: Path) -> argparse.Namespace:
    """The flags as fairseq-train reads them, with small sizes."""
    arch = str(train["arch"])
    kind = "recurrent"
    if arch.startswith("transformer"):
        kind = "transformer_lm" if arch.startswith("transformer_lm") else "transformer"
    extra = [part for name in SIZES[kind] for part in (f"--{name}", "16")]
    if train.get("task", "translation") == "translation":
        extra += ["--source-lang", "de", "--target-lang", "en"]
    arguments = program_arguments(str(data), train, ["--cpu", *extra])
    return options.parse_args_and_arch(options.get_training_parser(), arguments)


_OPTIMIZERS: dict[str, Any] = {}  # fairseq's configurations; making one takes half of a test


def build_optimizer(flags: Flags, args: argparse.Namespace, parameters: list[Any]) -> Any:
    """Optimizer with its learning rate after one update."""
    names = ("optimizer", "lr", "adam-betas", "weight-decay", "warmup-updates", "task")
    key = str([item for item in flags.items() if item[0] in names or item[0].startswith("lr-")])
    if key not in _OPTIMIZERS:
        _OPTIMIZERS[key] = convert_namespace_to_omegaconf(args)
    config = _OPTIMIZERS[key]
    optimizer = optim.build_optimizer(config.optimizer, parameters)
    lr_scheduler.build_lr_scheduler(config.lr_scheduler, optimizer).step_update(1)
    return optimizer


def batch_for(args: argparse.Namespace) -> dict[str, Any]:
    batch = make_batch((5, 3, 6), words=WORDS)
    batch |= {"id": torch.arange(3), "nsentences": 3}
    if args.task == "language_modeling":
        target, inputs = batch["target"], batch["net_input"]
        read = target if getattr(args, "self_target", False) else inputs["prev_output_tokens"]
        batch["net_input"] = {"src_tokens": read, "src_lengths": target.ne(1).sum(1)}
    return batch


@pytest.mark.parametrize("train", [*complete_configurations(), *rows_of_tables()])
def test_one_training_step_and_one_decoding(train: Flags, data: Path) -> None:
    args = parse(train, data)
    task = tasks.setup_task(args)
    model, criterion = task.build_model(args), task.build_criterion(args)
    optimizer = build_optimizer(train, args, list(model.parameters()))
    batch = batch_for(args)
    own = getattr(model.decoder, "output", None)
    layer = model.decoder.output_projection if own is None else own  # fairseq's own model
    before = layer.weight.detach().clone()
    loss, size, _ = task.train_step(batch, model, criterion, optimizer, 0)
    task.optimizer_step(optimizer, model=model, update_num=0)
    assert loss.isfinite()
    assert size == 14
    assert layer.weight.isfinite().all()
    assert not torch.equal(layer.weight, before)
    if own is not None:
        check_layer(own, args)
    model.eval()
    with torch.no_grad():
        loss, _, _ = criterion(model, batch)
    assert loss.isfinite()
    if getattr(args, "self_target", False):  # a cloze model does not generate
        return
    generator = task.build_generator([model], argparse.Namespace(beam=5, max_len_b=4))
    prefix = batch["target"][:, :2] if args.task == "language_modeling" else None
    with torch.no_grad():
        hypotheses = task.inference_step(generator, [model], batch, prefix_tokens=prefix)
    assert [len(one) for one in hypotheses] == [5] * 3
    assert all(one["score"].isfinite() for row in hypotheses for one in row)


def check_layer(layer: OutputLayer, args: argparse.Namespace) -> None:
    """The output layer is what the flags say."""
    components = {
        "mos": getattr(args, "mixture_components", 0),
        "mixture": len(str(args.mixture_kernels).split(",")),
    }
    if args.output_layer in components:
        assert layer.components == components[args.output_layer]
    elif args.output_layer == "softmax":
        assert (layer.kernel_name, layer.total_senses) == ("lin", WORDS)
    else:
        assert isinstance(layer, KerbsOutputLayer)
        assert layer.kernel.name == args.kernel
        assert layer.new_sense == args.new_sense
        assert layer.total_senses == round(args.total_senses * WORDS)


def test_generation_flags_are_fairseqs_own(data: Path) -> None:
    seen: set[str] = set()
    for path in CONFIGURATIONS:
        experiment = load_experiment(path)
        if str(experiment.generate) in seen or not experiment.generate:
            continue
        seen.add(str(experiment.generate))
        arguments = program_arguments(str(data), {"path": "x.pt", **experiment.generate})
        args = options.parse_args_and_arch(options.get_generation_parser(), arguments)
        assert args.beam == 5
    assert seen


@pytest.mark.parametrize(("name", "cards"), [("one_gpu", 1), ("several_gpus", 4)])
def test_a_dry_run_for_gpus_prints_what_fairseq_parses(
    name: str, cards: int, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = CONFIGS / f"iwslt16/transformer_{name}.yaml"
    assert main(["train", str(config), str(data), "runs/gpu", "--dry-run"]) == 0
    program, *arguments = shlex.split(capsys.readouterr().out.splitlines()[1])
    assert Path(program).name == "fairseq-train"
    args = options.parse_args_and_arch(options.get_training_parser(), arguments)
    cfg = convert_namespace_to_omegaconf(args)
    assert cfg.common.fp16
    assert cfg.dataset.batch_size * cards * cfg.optimization.update_freq[0] == 128  # the paper's
    assert cfg.dataset.max_tokens * cards == 8192
    assert cfg.dataset.num_workers == 4
    assert cfg.distributed_training.ddp_backend == "pytorch_ddp"
    plain = load_experiment(CONFIGS / "iwslt16/transformer_kerbs.yaml").train
    changed = {"fp16", "max-tokens", "batch-size", "update-freq", "num-workers", "ddp-backend"}
    differs = {
        key for key, value in load_experiment(config).train.items() if plain.get(key) != value
    }
    assert differs == changed - (set() if cards > 1 else {"batch-size", "ddp-backend"})


def test_evaluation_flags_are_fairseqs_own() -> None:
    paths = Paths(Path("raw"), Path("work"), Path("results"))
    _, wanted = plan_runs(ALL_TABLES, "small", ["table1/lm/kerbs"])
    (run,) = wanted.values()
    program, *arguments = run_job(run, paths).steps[1].command
    assert program == "fairseq-eval-lm"
    args = options.parse_args_and_arch(options.get_eval_lm_parser(), arguments)
    assert (args.gen_subset, args.tokens_per_sample, args.batch_size) == ("test", 35, 64)
    assert args.path == f"work/cells/{run.id}/checkpoints/checkpoint_best.pt"

"""Configurations: what they hold as argument lists; fairseq takes them, their models train."""

import argparse
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_kerbs import configurations
from fairseq_kerbs.cli import main
from fairseq_kerbs.configurations import CONFIGS, Flags, load_experiment, program_arguments
from fairseq_kerbs.models.config import policy_from_flags
from fairseq_kerbs.output_layers import KerbsOutputLayer
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.processes import PLUGIN_FOLDER
from scripts.tables.descriptions import TABLES, load_table, plan_runs
from tests.helpers.cli import Capsys, Folders, Patch
from tests.helpers.fairseq_fixtures import dictionary, make_batch, make_text

WORDS = 40
WIDTHS = ("embed-dim", "ffn-embed-dim")
# sizes alone: layers, heads and what the configuration is about stay as they are
SIZES = {
    "transformer": [f"{side}-{name}" for side in ("encoder", "decoder") for name in WIDTHS],
    "recurrent": ["hidden-size", "embed-dim"],
    "transformer_lm": [f"decoder-{name}" for name in WIDTHS],
    "fairseq_lstm_lm": ["decoder-embed-dim", "decoder-hidden-size", "decoder-out-embed-dim"],
}


OTHERS = {*CONFIGS.glob("tables/**/*.yaml"), *CONFIGS.glob("snakemake/**/*.yaml")}
CONFIGURATIONS = sorted({*CONFIGS.glob("**/*.yaml")} - OTHERS)


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


KINDS = {
    "seed: 010": ["--seed", "010"],
    "adam-betas: (0.9, 0.98)": ["--adam-betas", "(0.9, 0.98)"],
    "share-all-embeddings: true": ["--share-all-embeddings"],
    "fp16: false": [],
    "restore-file: null": [],
    "patience:": [],
    "list: [a, 2, 1.50]": ["--list", "a", "2", "1.50"],
    "log-prob-threshold: -1e-5": ["--log-prob-threshold=-1e-5"],
    "eval-bleu-args: '{\"beam\": 5}'": ["--eval-bleu-args", '{"beam": 5}'],
    'flag: "true"': ["--flag"],
    "word: True": ["--word", "True"],
}


def test_kinds_of_values(tmp_path: Path) -> None:
    lines = ["description: all kinds", "train:", *(f"  {line}" for line in KINDS)]
    path = write(tmp_path, "a.yaml", "\n".join(lines))
    expected = [part for arguments in KINDS.values() for part in arguments]
    assert configurations.flag_arguments(load_experiment(path).train) == expected


PLAIN = st.from_regex(r"[0-9a-zA-Z_.+]{1,12}", fullmatch=True)


@settings(max_examples=40)
@given(PLAIN.filter(lambda text: text not in ("true", "false", "null")))
def test_plain_values_arrive_as_written(tmp_path_factory: Folders, value: str) -> None:
    path = write(tmp_path_factory.mktemp("yaml"), "a.yaml", f"train:\n  key: {value}\n")
    assert configurations.flag_arguments(load_experiment(path).train) == ["--key", value]


def test_extending_file_wins_and_may_take_away(tmp_path: Path) -> None:
    write(tmp_path, "base/root.yaml", "train:\n  lr: 1\n  cpu: true\ngenerate:\n  beam: 5\n")
    write(tmp_path, "base/more.yaml", "extends: root.yaml\ntrain:\n  lr: 2\n  clip-norm: 1.0\n")
    write(tmp_path, "other.yaml", "train:\n  clip-norm: 0.1\n")
    text = "extends: [base/more.yaml, other.yaml]\ntrain:\n  cpu: false\n  seed: 3\n"
    experiment = load_experiment(write(tmp_path, "a.yaml", text))
    arguments = map(configurations.flag_arguments, (experiment.train, experiment.generate))
    assert [*map(" ".join, arguments)] == ["--lr 2 --clip-norm 0.1 --seed 3", "--beam 5"]
    files = ["a.yaml", "more.yaml", "root.yaml", "other.yaml"]
    assert [file.name for file in experiment.files] == files
    origins = {name: file.name for (_, name), file in experiment.origins.items()}
    assert origins == {
        "lr": "more.yaml",
        "cpu": "a.yaml",
        "beam": "root.yaml",
        "clip-norm": "other.yaml",
        "seed": "a.yaml",
    }


def test_command_line_replaces_the_file() -> None:
    flags: Flags = {"lr": "1", "max-update": "10", "seed": "1"}
    extra = ["--lr", "2", "--max-update=20", "-s", "de"]
    ours = ["data", "--user-dir", str(PLUGIN_FOLDER), "--seed", "1"]
    assert program_arguments("data", flags, extra) == [*ours, *extra]


def test_configurations_have_names(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy").mkdir()  # as 'fairseq-kerbs toy toy' would
    toy = configurations.CONFIGS / "toy.yaml"
    for name in ("toy", "toy.yaml", "configs/toy.yaml", str(toy)):
        assert configurations.find_configuration(Path(name)) == toy
    own = write(tmp_path, "toy.yaml", "train:\n  seed: 5\n")
    assert configurations.find_configuration(Path("toy.yaml")).samefile(own)
    names = configurations.configuration_names()
    for name in names:
        assert configurations.load_experiment(configurations.find_configuration(Path(name))).files
    assert {"toy", "multi30k/lstm_kerbs", "wikitext2/gru_kerbs"} <= set(names)
    assert not [name for name in names if "base" in name or name.startswith(("tables", "paper"))]
    for name, near in (("multi30k/lstm_krebs", "mean multi30k/lstm_kerbs"), ("x", "train --help")):
        with pytest.raises(UserError, match=f"{name}: no such file, .*{near}"):
            configurations.find_configuration(Path(name))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        *(
            (f"train: {{a: {value}}}", "a.yaml: train: a ")
            for value in ("{b: 1}", "[[1]]", "[true]")
        ),
        ("- a\n- b\n", "a.yaml"),
        ("train: [\n", r"a.yaml, line \d"),
        ("train:\n  lr: 1\n  lr: 2\n", "a.yaml.* twice"),
        ("extends: nowhere.yaml\n", "nowhere.yaml"),
        ("extends: [a.yaml]\n", "extends this file"),
    ],
)
def test_mistakes_are_a_sentence_that_names_the_file(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(UserError, match=named) as caught:
        configurations.load_experiment(write(tmp_path, "a.yaml", text))
    assert "\n" not in str(caught.value)


def test_languages_of_data(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--target-lang"):
        configurations.language_pair(str(tmp_path))
    for language in ("de", "en"):
        (tmp_path / f"train.de-en.{language}.idx").touch()
    assert configurations.language_pair(str(tmp_path)) == ("de", "en")


NUMBERS = (
    "lr",
    "seed",
    "dropout",
    "decay",
    "updates",
    "update",
    "max-tokens",
    "batch-size",
    "dim",
    "size",
    "epoch",
    "interval",
    "threshold",
)


def trainings() -> Iterator[Any]:
    """Of configurations, and of rows of tables, those that differ in more than numbers."""
    named: dict[str, Flags] = {}
    for path in CONFIGURATIONS:
        flags = load_experiment(path).train
        if "arch" in flags and path.stem != "base":
            named[str(path.relative_to(CONFIGS).with_suffix(""))] = flags
    tables = sorted(TABLES.glob("*.yaml")) if find_spec("jsonschema") else []  # extra tables
    for path in (path for path in tables if path.stem not in ("data", "schema")):
        for scale in ("full", "small"):
            for run in plan_runs(load_table(str(path)), scale):
                flags = load_experiment(run.config).train
                for word in shlex.split(run.flags):
                    if word.startswith("--"):
                        name, flags[word[2:]] = word[2:], True
                    else:
                        flags[name] = word
                named.setdefault(run.folder, flags)
    seen: list[Flags] = []
    for name, flags in named.items():
        kind = {key: value for key, value in flags.items() if not key.endswith(NUMBERS)}
        if kind not in seen:
            seen.append(kind)
            yield pytest.param(flags, id=name)


@pytest.fixture(scope="module")
def data(tmp_path_factory: Folders) -> Path:
    """Dictionaries of :data:`WORDS` words, fairseq's four specials included."""
    folder = tmp_path_factory.mktemp("data")
    for name in ("dict.de.txt", "dict.en.txt", "dict.txt"):
        dictionary(WORDS).save(str(folder / name))
    return folder


def parse(train: Flags, data: Path) -> argparse.Namespace:
    arch = str(train["arch"])
    kind = "recurrent"
    if arch.startswith("transformer"):
        kind = "transformer_lm" if arch.startswith("transformer_lm") else "transformer"
    elif arch == "fairseq_lstm_lm_kerbs":
        kind = "fairseq_lstm_lm"
    extra = [part for name in SIZES[kind] for part in (f"--{name}", "16")]
    if train.get("task", "translation") == "translation":
        extra += ["--source-lang", "de", "--target-lang", "en"]
    arguments = program_arguments(str(data), train, ["--cpu", *extra])
    return options.parse_args_and_arch(options.get_training_parser(), arguments)


@pytest.mark.parametrize("train", trainings())
def test_a_loss_and_its_gradient(train: Flags, data: Path) -> None:
    args = parse(train, data)
    task = tasks.setup_task(args)
    model = task.build_model(args)
    criterion = task.build_criterion(args)
    batch = make_batch((5, 3, 6))
    own = getattr(model.decoder, "output", None)
    if args.task == "language_modeling":
        batch = make_text((5, 3, 6), both_sides=getattr(args, "self_target", False))
    layer = model.decoder.output_projection if own is None else own  # fairseq's own model
    loss, size, _ = criterion(model, {**batch, "id": torch.arange(3), "nsentences": 3})
    loss.backward()
    assert loss.isfinite()
    assert size == 14
    assert layer.weight.grad.isfinite().all()
    assert layer.weight.grad.any()
    if own is None:
        return
    kernels = str(args.mixture_kernels).split(",")
    components = {"mos": getattr(args, "mixture_components", 0), "mixture": len(kernels)}
    if args.output_layer in components:
        assert own.components == components[args.output_layer]
    elif args.output_layer == "softmax":
        assert (own.kernel_name, own.total_senses) == ("lin", WORDS)
    else:
        assert isinstance(own, KerbsOutputLayer)
        assert own.kernel.name == args.kernel
        assert own.policy == policy_from_flags(args)
        assert own.total_senses == round(args.total_senses * WORDS)


def test_generation_flags_are_fairseqs_own(data: Path) -> None:
    generating = [load_experiment(path).generate for path in CONFIGURATIONS]
    different = {str(flags): flags for flags in generating if flags}
    assert different
    for flags in different.values():
        arguments = program_arguments(str(data), {"path": "x.pt", **flags})
        assert options.parse_args_and_arch(options.get_generation_parser(), arguments).beam == 5


@pytest.mark.parametrize(("name", "gpus"), [("one_gpu", 1), ("several_gpus", 4)])
def test_configurations_for_gpus_have_the_papers_batches(name: str, gpus: int, data: Path) -> None:
    train = load_experiment(CONFIGS / f"iwslt16/transformer_{name}.yaml").train
    cfg = convert_namespace_to_omegaconf(parse(train, data))
    assert cfg.common.fp16
    assert cfg.dataset.batch_size * gpus * cfg.optimization.update_freq[0] == 128  # the paper's
    assert cfg.dataset.max_tokens * gpus == 8192
    assert cfg.dataset.num_workers == 4
    assert cfg.distributed_training.ddp_backend == "pytorch_ddp"
    plain = load_experiment(CONFIGS / "iwslt16/transformer_kerbs.yaml").train
    changed = {"fp16", "max-tokens", "batch-size", "update-freq", "num-workers", "ddp-backend"}
    differs = {key for key, value in train.items() if plain.get(key) != value}
    assert differs == changed - (set() if gpus > 1 else {"batch-size", "ddp-backend"})


GAO_LAYERS = {
    "kernel": {"output.weight"},
    "mixture": {"output.weight", "output.projections.weight", "output.mixing.weight"},
}
CELL = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


@pytest.mark.parametrize("folder", ["switchboard", "wikitext2"])
@pytest.mark.parametrize("name", ["kernel", "mixture"])
def test_the_language_model_of_gao_et_al(
    folder: str, name: str, data: Path, monkeypatch: Patch
) -> None:
    """Section 4.1: two LSTM layers of 512, dropout 0.1 on the embedded words alone; their states
    are the context vectors."""
    train = load_experiment(CONFIGS / folder / f"{name}.yaml").train
    arguments = program_arguments(str(data), train, ["--cpu"])
    args = options.parse_args_and_arch(options.get_training_parser(), arguments)
    decoder = tasks.setup_task(args).build_model(args).train().decoder
    width = {"switchboard": 512, "wikitext2": 128}[folder]
    cells = {f"layers.{n}.{part}" for n in range(2) for part in CELL}
    parameters = dict(decoder.named_parameters())  # no linear layer, no second output layer
    assert {*parameters} == {"embed_tokens.weight", *cells} | GAO_LAYERS[name]
    assert parameters["layers.1.weight_hh"].shape == (4 * width, width)
    for vectors in ("embed_tokens.weight", "output.weight"):
        assert parameters[vectors].shape == (WORDS, width)
    assert decoder.embed_tokens.weight is not decoder.output.weight

    dropped = []

    def recording(x: torch.Tensor, p: float, training: bool, inplace: bool = False) -> Any:
        kept = torch.rand_like(x) >= p
        if p > 0 and training:
            dropped.append((p, x.detach()))
        return x * kept / (1 - p) if training else x

    monkeypatch.setattr(torch.nn.functional, "dropout", recording)
    words = torch.randint(4, WORDS, (3, 5))
    torch.manual_seed(1)
    features = decoder.extract_features(words)[0]
    embedded = torch.nn.functional.embedding(words, decoder.embed_tokens.weight)
    assert {p for p, _ in dropped} == {0.1}
    torch.testing.assert_close(torch.stack([x for _, x in dropped], 1), embedded.detach())
    plain = torch.nn.LSTM(width, width, num_layers=2, batch_first=True)
    for place, part in ((place, part) for place in range(2) for part in CELL):
        getattr(plain, f"{part}_l{place}").data = parameters[f"layers.{place}.{part}"].data
    states, _ = plain(embedded)
    torch.testing.assert_close(decoder.eval().extract_features(words)[0], states)
    assert not torch.allclose(features, states)


def test_configurations_with_a_placement_are_recipes(
    data: Path, tmp_path: Path, capsys: Capsys
) -> None:
    recipes = [c for c in CONFIGS.glob("*/*.yaml") if "\nplacement:" in c.read_text("utf-8")]
    assert len(recipes) >= 5
    flags = ["--dry-run", "--train-subset", "train,more", "--valid-subset", "dev"]
    for config in recipes:
        assert main(["train", str(config), str(data), str(tmp_path / "save"), *flags]) == 0
        commands = [line for line in capsys.readouterr().out.splitlines() if line[0] != "#"]
        programs = [shlex.split(line)[0] for line in commands]
        assert [Path(program).name for program in programs][::2] == ["fairseq-train"] * 2
        assert " convert " in commands[1]
        assert commands[1].endswith(" --split train --valid-split dev")


def test_a_configuration_may_be_a_link(tmp_path: Path) -> None:
    """What it extends is beside the file that the link leads to."""
    (tmp_path / "own").mkdir()
    for name in ("multi30k/transformer_kerbs", "multi30k"):
        link = tmp_path / "own" / Path(name).name
        file = configurations.CONFIGS / name
        if not file.is_dir():
            link, file = link.with_suffix(".yaml"), file.with_suffix(".yaml")
        link.symlink_to(file)
    expected = configurations.load_experiment(
        configurations.CONFIGS / "multi30k" / "transformer_kerbs.yaml"
    )
    for name in ("transformer_kerbs.yaml", "multi30k/transformer_kerbs.yaml"):
        assert configurations.load_experiment(tmp_path / "own" / name).train == expected.train
    path = write(tmp_path, "a.yaml", "extends: absent.yaml\n")
    with pytest.raises(UserError, match=rf"^{path}: extends: .*absent.yaml: no such file"):
        configurations.load_experiment(path)


def test_languages_are_read_beside_a_split_with_a_dot(tmp_path: Path) -> None:
    for name in ("test.2016.de-en.de.idx", "align.align.de-en.idx", "train.de-en.de.idx"):
        (tmp_path / name).touch()
    assert configurations.language_pair(str(tmp_path)) == ("de", "en")

"""``fairseq-kerbs train``, ``generate`` and ``translate``: fairseq with a configuration's flags."""

from __future__ import annotations

import argparse
import inspect
import logging
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_kerbs.commands import announce, arg, command, write_output
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import STDIN, atomic_write, read_lines
from fairseq_kerbs.utils.processes import PLUGIN_FOLDER, SAFE, find_program, quoted, run_program

if TYPE_CHECKING:
    from fairseq_kerbs.configurations import Experiment

_BEST = re.compile(r"([HK])-(\d+)\t(?:\S+\t)?(.*)")  # a hypothesis (id, score, text), its senses

_NO_ERROR = re.compile(r" \| (INFO|WARNING) \| ")


def _save_dir(text: str) -> str:
    """A folder name without characters that fairseq interprets."""
    if ":" in text or "${" in text:
        raise argparse.ArgumentTypeError(f"{text} has ':' or '${{', which fairseq interprets")
    return text


_EXPERIMENT = (
    arg.file(
        "config", "YAML file, or name of a configuration of fairseq_kerbs, such as toy", "CONFIG"
    ),
    arg.value("data", "folder 'bin' of 'fairseq-kerbs prepare', or of fairseq-preprocess", "DATA"),
    arg.value("save_dir", "folder of the checkpoints", "SAVE_DIR", type=_save_dir),
)
_DRY_RUN = arg.switch("--dry-run", "only print the command")


def _load_experiment(args: argparse.Namespace) -> Experiment:
    from fairseq_kerbs import configurations as experiments

    experiment = experiments.load_experiment(experiments.find_configuration(args.config))
    experiments.check_data(args.data)
    return experiment


class _Gone(argparse.Action):
    """A flag of former revisions, which ends with a sentence about its successor."""

    def __init__(self, successor: str, **options: Any) -> None:
        super().__init__(nargs="?", **options)
        self.successor = successor

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        parser.error(f"{self.option_strings[0]} is gone: {self.successor}")


class _WithDefaults(argparse.HelpFormatter):
    def _get_help_string(self, action: argparse.Action) -> str | None:
        default = action.default is not None and action.default is not False
        return f"{action.help} [%(default)s]" if default else action.help


class _TrainHelp(argparse.Action):
    """``train --help`` with the flags of the plugin, for which alone fairseq is loaded."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        logging.getLogger("fairseq").setLevel(logging.WARNING)  # it recommends needless packages
        from fairseq.dataclass.utils import gen_parser_from_dataclass

        from fairseq_kerbs.configurations import configuration_names
        from fairseq_kerbs.criterions import KerbsCrossEntropyCriterionConfig
        from fairseq_kerbs.models import config

        shown = argparse.ArgumentParser(
            add_help=False, usage=argparse.SUPPRESS, formatter_class=_WithDefaults
        )
        for kind in (
            config.KerbsConfig,
            config.SeparableKerbsConfig,
            config.RecurrentKerbsConfig,
            config.RecurrentAttentionConfig,
            KerbsCrossEntropyCriterionConfig,
        ):
            title = (inspect.getdoc(kind) or "").rstrip(".").replace("`", "")
            group = shown.add_argument_group(title)
            gen_parser_from_dataclass(group, kind())
            if kind is config.KerbsConfig:
                config.add_reallocation_at(group)
        shown.epilog = f"Configurations: {', '.join(configuration_names())}"
        print(f"{parser.format_help()}\n{shown.format_help()}", end="")
        parser.exit()


@command(
    "train",
    *_EXPERIMENT,
    _DRY_RUN,
    arg.value(
        "--preset",
        argparse.SUPPRESS,
        action=_Gone,
        successor="the paper's setting is the default of every architecture: leave it out",
    ),
    arg.value(
        "--sense-init",
        argparse.SUPPRESS,
        action=_Gone,
        successor="initial senses follow from --reallocation: leave it out",
    ),
    arg.value(
        "--new-sense",
        argparse.SUPPRESS,
        action=_Gone,
        successor="a moved sense keeps its embedding, as in Algorithm 1: leave it out",
    ),
    arg.flag(
        "-h",
        "--help",
        action=_TrainHelp,
        nargs=0,
        help="show this help message, all flags of fairseq_kerbs and its configurations, and exit",
    ),
    passes_on=True,
    add_help=False,
)
def train(args: argparse.Namespace) -> int:
    """fairseq-train with the flags of a configuration.

    Print and run fairseq-train with the flags of CONFIG. Other flags are passed to fairseq-train,
    and override CONFIG.
    """
    from fairseq_kerbs.training.staged import Training, train_and_place

    experiment = _load_experiment(args)

    def run_step(step: Sequence[str]) -> None:
        announce(experiment.files, quoted(step))
        if not args.dry_run and (status := run_program(step)) != 0:
            raise SystemExit(status)

    flags = {"save-dir": args.save_dir, **experiment.train}
    training = Training(args.data, args.save_dir, flags, tuple(args.extra))
    if experiment.placement is not None:
        training = train_and_place(training, experiment.placement, run_step, dry_run=args.dry_run)
    command = [find_program("fairseq-train"), *training.arguments()]
    announce(experiment.files, quoted(command))
    status = 0 if args.dry_run else run_program(command)
    return status if status >= 0 else 128 - status  # as a shell says that a signal ended it


@command(
    "generate",
    *_EXPERIMENT,
    _DRY_RUN,
    arg.file("--output", "output file [SAVE_DIR/generate-SUBSET.txt]"),
    arg.file("--reference", "raw target text, to print detokenized BLEU"),
    arg.switch("--print-senses", "add K-ID lines with word#sense:posterior for each subword"),
    arg.switch("--unescape", "undo the XML entities of 'prepare --escape' for BLEU"),
    passes_on=True,
)
def generate(args: argparse.Namespace) -> None:
    """fairseq-generate with the flags of a configuration, and BLEU.

    Print and run fairseq-generate with the flags of CONFIG. Other flags are passed to
    fairseq-generate and override CONFIG. With --print-senses the output stays in subwords.
    """
    from fairseq_kerbs import configurations as experiments
    from fairseq_kerbs.commands.senses import text_with_senses
    from fairseq_kerbs.data.prepare import target_rules
    from fairseq_kerbs.evaluation import bleu

    experiment = _load_experiment(args)
    best = str(Path(args.save_dir) / "checkpoint_best.pt")
    flags = {"path": best, "gen-subset": "test", **experiment.generate}
    if args.print_senses:
        joining = ("remove-bpe", "post-process")
        if given := [word for word in args.extra if word.partition("=")[0][2:] in joining]:
            raise UserError(f"{given[0]} does not go with --print-senses, which names subwords")
        flags = {name: value for name, value in flags.items() if name not in joining}
    arguments = experiments.program_arguments(args.data, flags, args.extra)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for names in (("--path",), ("--gen-subset",), ("--target-lang", "-t")):
        parser.add_argument(*names)
    parser.add_argument("--checkpoint-suffix", default="")
    named, _ = parser.parse_known_args(arguments)
    if args.reference is not None and not args.reference.is_file():
        raise UserError(f"--reference {args.reference}: no such file")
    if silent := {"--quiet", "--results-path"} & {word.partition("=")[0] for word in arguments}:
        raise UserError(f"{silent.pop()} leaves no translations for the output: leave it out")
    scored = args.reference is not None
    if scored:
        suffix = named.target_lang or experiments.language_pair(args.data)[1]
        language = target_rules(Path(args.data.split(":")[0]), suffix)
        scored_as = suffix if suffix in bleu.TOKENIZED else language
        metrics = {"BLEU": bleu.bleu_metric(language=scored_as)}  # which may refuse the language
    output = args.output or Path(args.save_dir) / f"generate-{named.gen_subset}.txt"
    command = [find_program("fairseq-generate"), *arguments]
    announce(experiment.files, f"{quoted(command)} > {quoted([output])}")
    paths = named.path.replace(".pt", f"{named.checkpoint_suffix}.pt")  # as fairseq does
    checkpoints = [Path(path) for path in paths.split(":")]
    if args.print_senses and len(checkpoints) > 1:
        raise UserError("--print-senses needs one model, but --path names several: name one")
    if args.dry_run:
        return
    for checkpoint in checkpoints:
        if not checkpoint.is_file():
            raise UserError(f"no checkpoint {checkpoint}; train first, or name another with --path")
    with atomic_write(output) as stream:
        if (status := run_program(command, stdout=stream)) < 0:
            raise UserError(f"fairseq-generate was ended by signal {-status}")
        if status:
            raise SystemExit(status)  # fairseq-generate has printed why
    if args.print_senses:
        data = Path(args.data.split(":")[0])
        model = argparse.Namespace(checkpoint=checkpoints[0], data=data, trust_checkpoint=True)
        text = text_with_senses(model, output)
        with atomic_write(output) as stream:
            stream.write(text)
    if scored:
        how = {"language": language, "unescape": args.unescape}
        systems, references = bleu.read_systems([output], [args.reference], **how)
        print(bleu.corpus_scores(systems[str(output)], references, metrics)[0].details)


@command(
    "translate",
    *_EXPERIMENT,
    arg.switch(
        "--print-senses",
        "append word#sense:posterior for each subword, and names of the senses of content words, "
        "each after a tab",
    ),
    passes_on=True,
)
def translate(args: argparse.Namespace) -> int:
    """translate raw text from standard input to standard output.

    Translate raw text line by line, by fairseq-generate with the flags of CONFIG. Other flags
    override these. Text is preprocessed as 'fairseq-kerbs prepare' did for DATA. For a line that is
    too long for the model, an empty line is written with a warning, and the exit status is 1.
    """
    from fairseq_kerbs.configurations import check_data, language_pair
    from fairseq_kerbs.data import tokens
    from fairseq_kerbs.data.prepare import preparation_of

    check_data(args.data)
    args.data = args.data.split(":")[0]
    source, target = language_pair(args.data)
    reading, segment = preparation_of(Path(args.data), source)
    writing, _ = preparation_of(Path(args.data), target)
    if os.isatty(0):
        _say("type text, one sentence a line; Ctrl-D ends it")
    lines = read_lines(STDIN)
    texts = [segment(tokens.tokenize(line, **reading)) for line in lines]
    translated, senses = _generated(args, source, target, texts)
    results, long = [""] * len(lines), []
    for number, text in enumerate(texts):
        if text and number in translated:
            words, rules = tokens.join_subwords(translated[number]), writing["language"]
            results[number] = tokens.detokenize(words, language=rules, unescape=writing["escape"])
            results[number] += f"\t{senses[number]}" if args.print_senses else ""
        elif text:
            long.append(str(number + 1))
    write_output(None, "".join(f"{result}\n" for result in results))
    if long:
        _say(f"too long for the model and left empty: line {', '.join(long)}; divide the text")
    return 1 if long else 0


def _generated(
    args: argparse.Namespace, source: str, target: str, texts: list[str]
) -> tuple[dict[int, str], dict[int, str]]:
    """What fairseq-generate makes of lines of subwords, and its senses, by number from 0. Raises
    SystemExit if it has failed, as it has said."""
    with tempfile.TemporaryDirectory(prefix="fairseq-kerbs-") as folder:
        # the training split names senses
        for kind in ("dict.*.txt", *["train.*"] * args.print_senses):
            for file in Path(args.data).glob(kind):
                Path(folder, file.name).symlink_to(file.resolve())
        # one more, so that there is something to translate
        content = "".join(f"{text or '.'}\n" for text in [*texts, "."])
        Path(folder, f"test.{source}-{target}.{source}").write_text(content, encoding="utf-8")
        output, log = Path(folder, "output"), Path(folder, "log")
        command = [sys.executable, *SAFE, "-m", "fairseq_kerbs.cli", "generate", str(args.config)]
        command += [folder, args.save_dir, *args.extra, "--output", str(output)]
        command += ["-s", source, "-t", target, "--gen-subset", "test", "--dataset-impl", "raw"]
        command += ["--skip-invalid-size-inputs-valid-test"]
        command += ["--print-senses"] * args.print_senses
        paths = (str(PLUGIN_FOLDER.parent), os.environ.get("PYTHONPATH", ""))  # this checkout
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        with log.open("w") as stderr, open(os.devnull, "w") as stdout:
            status = run_program(command, stdout, stderr.fileno())
        if status != 0:
            errors = (line for line in read_lines(log) if not _NO_ERROR.search(line))
            print(*errors, sep="\n", file=sys.stderr)
            raise SystemExit(status)
        best: dict[str, dict[int, str]] = {"H": {}, "K": {}}  # the first of each sentence
        for match in filter(None, map(_BEST.fullmatch, read_lines(output))):
            best[match[1]].setdefault(int(match[2]), match[3])
    return best["H"], best["K"]


def _say(sentence: str) -> None:
    print(f"fairseq-kerbs: {sentence}", file=sys.stderr)


@command("architectures")
def architectures(_: argparse.Namespace) -> None:
    """list the architectures for --arch, with the default sizes of their decoders

    Print the architectures, with the default sizes of their decoders, and the flags of the output
    layer that ``--arch`` alone sets. Numbers without a published value are ours.
    """
    logging.getLogger("fairseq").setLevel(logging.WARNING)  # it recommends needless packages
    from fairseq.models import ARCH_CONFIG_REGISTRY
    from tabulate import tabulate

    from fairseq_kerbs.models import PRESETS
    from fairseq_kerbs.models.config import flag, output_layer_flags

    names = ("embed_dim", "hidden_size", "ffn_embed_dim", "layers", "attention_heads", "dropout")
    rows = []
    settings: dict[str, dict[str, str]] = {}  # of every architecture, by flag
    for model, presets in PRESETS.items():
        for arch in presets:
            flags = argparse.Namespace()
            ARCH_CONFIG_REGISTRY[arch](flags)
            sizes = [getattr(flags, n, getattr(flags, f"decoder_{n}", "-")) for n in names]
            what = (inspect.getdoc(model) or "").splitlines()[0].rstrip(".")
            rows.append([arch, *map(str, sizes), what])
            settings[arch] = {name: str(value) for name, value in output_layer_flags(flags).items()}
    head = ["--arch", "embedding", "hidden", "feed-forward", "layers", "heads", "dropout", "what"]
    sides = ["left", *["right"] * len(names), "left"]
    print(tabulate(rows, head, "plain", disable_numparse=True, colalign=sides))

    every = list(settings.values())
    known = {name for chosen in every for name in chosen}
    varying = sorted(name for name in known if len({of.get(name) for of in every}) > 1)
    common = {name: value for name, value in every[0].items() if name not in varying}
    print("\nThe output layer of all:", *(f"{flag(n)} {value}" for n, value in common.items()))
    print()
    varied = [[arch, *(of.get(name, "-") for name in varying)] for arch, of in settings.items()]
    print(tabulate(varied, ["--arch", *map(flag, varying)], "plain", disable_numparse=True))


@command("user-dir")
def user_dir(_: argparse.Namespace) -> None:
    """print the folder to give to --user-dir of fairseq's programs"""
    print(PLUGIN_FOLDER)

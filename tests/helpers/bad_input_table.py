"""Wrong uses of every command, and what the one sentence about each must say.

``{work}`` is what `test_bad_input.work` made, ``{out}`` an empty folder with nothing but the
file ``{out}/file``.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from fairseq_kerbs.cli import build_parser

(_COMMANDS,) = (a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
SUBCOMMANDS = tuple(
    name for name, parser in _COMMANDS.choices.items() if parser.prog.endswith(f" {name}")
)
"""All of fairseq-kerbs, without their other names."""


@dataclass(frozen=True)
class Misuse:
    """One wrong use.

    Attributes:
        command: the command line.
        says: what the sentence must have in it: the flag or file, and what to do.
        left: what may be there afterwards besides what was: finished steps, by relative path.
    """

    command: str
    says: tuple[str, ...]
    left: tuple[str, ...] = ()


STARTED = ("dest/.lock", "dest/manifest.json")
TOKENIZED = (*STARTED, "dest/tok/test.de", "dest/tok/test.en")
PREPARE = "prepare --source-lang de --target-lang en --dest {out}/dest --workers 1 --bpe none"
TEXT = "--train {work}/text/train --valid {work}/text/valid --test {work}/text/test"
LANGUAGE = "prepare-lm --valid {work}/two --test {work}/two --dest {out}/dest --workers 1"
SENSES = "senses --data {work}/bin"
MODEL = "{work}/model.pt"
EXPORT = "human-eval export --source {work}/two --system a={work}/two --sheets {out}/sheets"
EXAMPLES = "examples --source {work}/two --system a={work}/two"

CORPORA = [
    Misuse("toy {out}/file", ("file/test.", "a part of its path is a file")),
    Misuse("toy {out}/file/corpus", ("corpus/test.", "a part of its path is a file")),
    Misuse("toy {out}/corpus --seed -1", ("--seed: must be at least 0, not -1",)),
    Misuse("toy {out}/corpus --tran 5", ("unrecognized arguments: --tran 5",)),
    Misuse(
        f"{PREPARE} {TEXT} --train {{work}}/bad",
        ("bad.de, line 2: not valid UTF-8", "convert the file"),
    ),
    Misuse(f"{PREPARE} {TEXT} --train {{work}}/unequal", ("unequal.de has 2 lines", "same number")),
    Misuse(f"{PREPARE} {TEXT} --test {{work}}/none", ("none.de is empty", "one sentence a line")),
    Misuse(
        f"{PREPARE} {TEXT} --valid {{work}}/blank",
        ("blank.de, line 2: empty", "remove the pair"),
        TOKENIZED,
    ),
    Misuse(
        f"{PREPARE} {TEXT} --valid {{work}}/long",
        ("long.de, line 1: 100000 tokens", "--max-words"),
        TOKENIZED,
    ),
    Misuse(
        f"{PREPARE} {TEXT} --valid {{work}}/endless",
        ("endless.de, line 2: a word has 1200000 characters", "divide the word"),
    ),
    Misuse(f"{PREPARE} {TEXT} --test {{work}}/text/test,", (".de: no such file",)),
    Misuse(f"{PREPARE} {TEXT} --merges 0", ("--merges: must be at least 1, not 0",)),
    Misuse(f"{PREPARE} {TEXT} --max-word 9", ("unrecognized arguments: --max-word 9",)),
    Misuse(f"{PREPARE} {TEXT} --dest {{out}}/file/d", ("file/d", "a part of its path is a file")),
    Misuse(f"{LANGUAGE} --train {{work}}/bad.de", ("bad.de, line 2: not valid UTF-8",), STARTED),
    Misuse(f"{LANGUAGE} --train {{work}}/empty", ("empty has no text",), STARTED),
    Misuse(f"{LANGUAGE} --train {{work}}/pad", ("pad, line 1: '<pad>'", "remove it"), STARTED),
    Misuse(
        f"{LANGUAGE} --train {{work}}/two --valid {{work}}/endless.de",
        ("endless.de, line 2: a word has 1200000 characters", "remove the line"),
        (*STARTED, "dest/text/train"),
    ),
    Misuse(f"{LANGUAGE} --train {{work}}/two --words -1", ("--words: must be at least 0",)),
    Misuse("prepare-lm {work}/text --dest {out}/dest", ("one file for train", "--train, --valid")),
    Misuse(
        "prepare-iwslt16 {work}/cut.tgz --dest {out}/dest",
        ("cut.tgz is not the released", "fetch it again"),
        STARTED,
    ),
    Misuse(
        "prepare-iwslt16 {work}/text --valid tst2099 --dest {out}/dest",
        ("--valid and --test must be of dev2010",),
    ),
    Misuse(
        "prepare-dailydialog {work}/dialogs --dest {out}/dest",
        ("dialogues_train.txt, line 1: a dialogue must end with __eou__",),
        STARTED,
    ),
    Misuse(
        "prepare-dailydialog {work}/endless_dialogs --dest {out}/dest",
        ("dialogues_test.txt, line 1: a word has 1200000 characters", "divide the word"),
        STARTED,
    ),
    Misuse(
        "prepare-lm1b {work}/dialogs --dest {out}/dest --train 5",
        ("there are 1 sentences (training)", "--train 5", "give smaller numbers"),
        STARTED,
    ),
    Misuse(
        "prepare-multi30k {work}/cut.tgz --dest {out}/dest",
        ("cut.tgz: no such folder", "name one with the released text"),
        STARTED,
    ),
    Misuse(
        "prepare-multi30k {work}/text --dest {out}/dest",
        ("text: one file val.de.gz was expected, found none",),
        STARTED,
    ),
    Misuse("prepare-multi30k --dest {out}/dest --merges 0", ("--merges: must be at least 1",)),
    Misuse(
        "prepare-wikitext2 {work}/cut.tgz --dest {out}/dest",
        ("cut.tgz is not the released wikitext-2-v1.zip", "fetch it again"),
        STARTED,
    ),
    Misuse(
        "prepare-wikitext2 {work}/text --dest {out}/dest",
        ("text: one file wiki.train.tokens was expected, found none",),
        STARTED,
    ),
]

EXPERIMENTS = [
    Misuse("train {work}/key.yaml {work}/bin {out}/save", ("key.yaml: unknown key 'trian'",)),
    Misuse("train {work}/dashes.yaml {work}/bin {out}/save", ("without leading dashes",)),
    Misuse("train {work}/cut.yaml {work}/bin {out}/save", ("cut.yaml, line 2: not valid YAML",)),
    Misuse("train {work}/bad.yaml {work}/bin {out}/save", ("bad.yaml, line 1: not valid UTF-8",)),
    Misuse("train {work}/code.yaml {work}/bin {out}/save", ("code.yaml, line 1: not valid YAML",)),
    Misuse(
        "train {work}/good.yaml {work}/text {out}/save", ("has no dict.*.txt", "name the 'bin'")
    ),
    Misuse(
        "train multi30k/lstm_kreb {work}/bin {out}/save", ("did you mean multi30k/lstm_kerbs?",)
    ),
    Misuse("generate {work}/good.yaml {work}/bin {out}/save", ("no checkpoint", "--path")),
    Misuse(
        f"generate {{work}}/good.yaml {{work}}/bin {{out}}/save --path {MODEL} --output {MODEL}",
        ("--output", "model.pt is the checkpoint itself", "name another"),
    ),
    Misuse(
        "generate {work}/good.yaml {work}/bin {work} --reference {work}/generate-test.txt",
        ("generate-test.txt is the reference itself", "name another"),
    ),
    Misuse("translate toy {work}/text {out}/save", ("text does not exist or has no dict.*.txt",)),
    Misuse(
        "translate toy {work}/bin {out}/save",
        ("manifest.json does not tell how raw text became", "name the 'bin' folder"),
    ),
    Misuse("architectures --sizes", ("unrecognized arguments: --sizes", "--help")),
    Misuse("user-dir {work}", ("unrecognized arguments",)),
    Misuse(
        f"generate {{work}}/good.yaml {{work}}/bin {{out}}/save --path {MODEL} --output {{out}}",
        ("cannot be written (Is a directory); name a file",),
    ),
    Misuse("plot kernels -o {out}/figure.jpg", ("figure.jpg", ".png, .pdf, .svg")),
    Misuse("plot kernel -o {out}/figure.png", ("invalid choice: 'kernel'",)),
]

EVALUATION = [
    Misuse(
        "detokenize {work}/two --lang en -o {work}/two", ("--output", "two is the input itself")
    ),
    Misuse(f"{EXAMPLES} -o {{work}}/two", ("--output", "two is the source itself", "another file")),
    Misuse(
        "examples --source {work}/none.de --system a={work}/two -o {work}/two",
        ("two is the system itself", "name another file"),
    ),
    Misuse(f"senses {MODEL} --json {MODEL}", ("--json", "model.pt is the checkpoint itself")),
    Misuse("detokenize --lang en {work}/bad.de", ("bad.de, line 2: not valid UTF-8",)),
    Misuse("detokenize --lang en {work}/two/x", ("two/x cannot be read", "part of its path")),
    Misuse("detokenize --lang xx {work}/two", ("--lang: Moses has no rules", "known are")),
    Misuse("detokenize --lang en {work}/two --output {out}/file/x", ("file/x", "part of its path")),
    Misuse(
        "score --hypotheses {work}/two --reference {work}/pad",
        ("two has 2 lines", "same test"),
    ),
    Misuse("score --hypotheses {work}/empty --reference {work}/empty", ("empty is empty",)),
    Misuse(
        "score --hypotheses {work}/two {work}/pad --reference {work}/two",
        ("pad has 1", "the same test set"),
    ),
    Misuse(
        "score --hypotheses {work}/two {work}/empty --reference {work}/two", ("empty is empty",)
    ),
    Misuse(
        "score --hypotheses {work}/two --reference {work}/two --max-ngram-order 0",
        ("--max-ngram-order must be at least 1",),
    ),
    Misuse(
        "score --hypotheses {work}/two --reference {work}/two --tokenize 13b",
        ("--tokenize must be one of none, ", "13a"),
    ),
    Misuse("detokenize --lang en {work}/two --output .", (". cannot be written", "name a file")),
    Misuse(f"{EXAMPLES} --system a={{work}}/two", ("--system a is there twice",)),
    Misuse(f"{EXAMPLES} --system b={{work}}/pad", ("pad has 1", "the same test set")),
    Misuse(f"{EXAMPLES} --choose best --of c", ("--of c is none of the systems a",)),
    Misuse(f"{EXAMPLES} --choose best --baseline c", ("--baseline c is none of the systems a",)),
    Misuse(f"{EXAMPLES} --number 0", ("--number is 0",)),
    Misuse(f"{EXPORT} --key {{out}}/key.json --items 3", ("--items is 3", "between 1 and 2")),
    Misuse(f"{EXPORT} --key {{out}}/key.json --items 1 --raters 0", ("--raters is 0",)),
    Misuse(f"{EXPORT} --key {{out}}/key.json --item 1", ("--item 1", "did you mean --items?")),
    Misuse(
        f"{EXPORT} --key {{out}}/sheets/key.json --items 1",
        ("--key: ", "put it where raters do not see it"),
    ),
    # the sheets could be written, but would be of no use without their key
    Misuse(
        f"{EXPORT} --key {{out}}/file/key.json --items 1", ("file/key.json", "part of its path")
    ),
    Misuse("human-eval score --key {work}/two {work}/two", ("--key: ", "name the exported key")),
]

MODELS = [
    Misuse(f"{SENSES} {{work}}/{name}.pt", (f"{name}.pt {says}", todo))
    for name, says, todo in (
        ("cut", "is no whole checkpoint", "take another"),
        ("flipped", "is no whole checkpoint", "take another"),
        ("empty", "is no whole checkpoint", "take another"),
        ("text", "is no whole checkpoint", "take another"),
        ("list", "holds no model of fairseq-train", "name one of its checkpoints"),
        ("stock", "holds no model of fairseq_kerbs", "name a checkpoint of one of its"),
        ("code", "holds more than tensors and settings (posix.system)", "--trust-checkpoint"),
    )
] + [
    Misuse(f"{SENSES} {{work}}/cut.pt --trust-checkpoint", ("cut.pt is no whole checkpoint",)),
    Misuse(f"{SENSES} {{work}}/senses.pt", ("checkpoint has 783 senses", "--total-senses")),
    Misuse(f"{SENSES} {{work}}/nan.pt", ("NaN or infinity is in 'decoder.output.inv", "earlier")),
    Misuse(f"{SENSES} {{work}}/negative.pt", ("inventory.usage'", "take an earlier checkpoint")),
    Misuse("report {work}/nan.pt -o {out}/r.html", ("log_prob'", "take an earlier checkpoint")),
    Misuse("neighbours {work}/negative.pt", ("a negative number is in", "an earlier checkpoint")),
    Misuse(
        f"senses {MODEL} --data {{work}}/turned_en",
        ("target dictionary of", "in another order", "use the data"),
    ),
    Misuse(
        f"geometry {MODEL} --data {{work}}/turned_de",
        ("source dictionary of", "in another order", "use the data"),
    ),
    Misuse(
        f"senses {MODEL} --dict {{work}}/turned_en/dict.en.txt",
        ("en/dict.en.txt has as many words as the checkpoint", "give the dictionary"),
    ),
    Misuse(f"{SENSES} {{work}}/task.pt", ("the task 'translating'", "--trust-checkpoint")),
    Misuse(f"{SENSES} {{out}}/absent.pt", ("there is no checkpoint", "absent.pt")),
    Misuse(f"senses {MODEL} --data {{work}}/other_de", ("source dictionary of", "use the data")),
    Misuse(f"senses {MODEL} --data {{work}}/other_en", ("target dictionary of", "use the data")),
    Misuse(f"senses {MODEL} --data {{work}}/text", ("text is no folder with a dict.*.txt",)),
    Misuse(f"senses {MODEL} --data {{work}}/long", ("--split test: sentence 1 has 100001 tokens",)),
    Misuse(
        f"senses {MODEL} --data {{work}}/damaged", ("--split test", "damaged", "make them again")
    ),
    Misuse(f"{SENSES} {MODEL} --split tset", ("--split", "tset", "name a split")),
    Misuse(f"{SENSES} {MODEL} --gold {{work}}/two", ("two, line 1: expected line, occurrence",)),
    Misuse("gold-mlt {work}/two --text {work}/two -o {out}/gold", ("two, line 1: expected five",)),
    Misuse(
        "gold-coarsewsd {work} --text {out}/text -o {out}/gold", ("has no WORD/train.data.txt",)
    ),
    Misuse(f"{SENSES} {MODEL} --top -1", ("--top is -1, but must be 0 or more",)),
    Misuse(f"{SENSES} {MODEL} --examples -1", ("--examples is -1",)),
    Misuse(f"{SENSES} {MODEL} --word the nosuch", ("--word: nosuch: no entry", "none of its own")),
    Misuse(f"{SENSES} {MODEL} --json {{out}}/file/r", ("file/r", "a part of its path is a file")),
    Misuse(f"senses {MODEL} --dict {{work}}/two", ("two is no dictionary of fairseq",)),
    Misuse("report {work}/code.pt -o {out}/r.html", ("(posix.system)", "--trust-checkpoint")),
    Misuse(f"report {MODEL} --data {{work}}/bin -o {{out}}/file/r.html", ("a part of its path",)),
    Misuse(f"geometry {MODEL} --data {{work}}/text", ("text is no folder with a dict.*.txt",)),
    Misuse("geometry {work}/code.pt --data {work}/bin", ("(posix.system)", "--trust-checkpoint")),
    Misuse(f"neighbours {MODEL} {{work}}/cut.pt", ("cut.pt is no whole checkpoint",)),
    Misuse(f"neighbours {MODEL} --data {{work}}/text", ("text is no folder with a dict.*.txt",)),
    Misuse("neighbours {work}/code.pt", ("(posix.system)", "--trust-checkpoint")),
    Misuse(f"neighbours {MODEL} --by confusions", ("--by confusions", "give --data BIN")),
    Misuse(f"neighbours {MODEL} --least 99999", ("--least 99999", "a smaller number")),
    Misuse("plot theta {work}/cut.pt --word a -o {out}/t.png", ("cut.pt is no whole checkpoint",)),
]

LACKING = [
    Misuse(command.replace("X", f"{{work}}/{name}"), (f"{name}.pt", says))
    for name, says in (
        ("minimal", "name one of its checkpoints"),
        ("no_tensors", "holds no model of fairseq-train"),
        ("numbers", "holds no model of fairseq-train"),
        ("bare", "take the file that fairseq-train wrote"),
        ("no_task", "take the file that fairseq-train wrote"),
        ("no_settings", "take the file that fairseq-train wrote"),
        ("word", "name a file that fairseq-train wrote"),
        ("list_cfg", "name a file that fairseq-train wrote"),
        ("number", "name a file that fairseq-train wrote"),
        ("no_history", "take the file that fairseq-train wrote"),
        ("part", "take a whole model"),
    )
    for command in ("neighbours X.pt", "convert X.pt -o {out}/k.pt", "report X.pt -o {out}/r.html")
    if (name, command[:7]) != ("part", "convert")  # refused for what its settings say
]

CONVERSION = (
    [
        Misuse(f"convert {{work}}/{name}.pt -o {{out}}/k.pt", (f"{name}.pt {says}", todo))
        for name, says, todo in (
            ("cut", "is no whole checkpoint", "take another"),
            ("list", "holds no model of fairseq-train", "name one of its checkpoints"),
            ("code", "holds more than tensors and settings (posix.system)", "--trust-checkpoint"),
            ("model", "is a KerBS model already", "train on with it"),
            ("stock", "has no whole output layer", "take a whole model"),
        )
    ]
    + [
        Misuse("convert {out}/absent.pt -o {out}/k.pt", ("there is no checkpoint", "absent.pt")),
        Misuse(f"convert {MODEL}", ("the following arguments are required: -o/--output",)),
        Misuse(
            f"convert {MODEL} -o {MODEL}", ("model.pt is the checkpoint itself", "name another")
        ),
        Misuse(
            f"convert {MODEL} -o {{out}}/k.pt --config {{out}}/sub/../k.pt",
            ("k.pt is the config itself", "name another"),
        ),
        Misuse(
            f"convert {MODEL} -o {{out}}/k.pt --config {{work}}/stock.pt",
            ("stock.pt is written as YAML", "ends in .yaml"),
        ),
    ]
    + [
        Misuse(f"convert {MODEL} -o {{out}}/k.pt {flags}", says)
        for flags, says in (
            ("--total-senses 0.9", ("--total-senses is 0.9", "between 1 and --max-senses (4)")),
            ("--total-senses 3 --max-senses 2", ("--total-senses is 3.0", "--max-senses (2)")),
            ("--total-senses nan", ("--total-senses is nan", "between 1 and")),
            ("--max-senses 0", ("--max-senses is 0", "at least 1")),
            ("--extra-senses split --split-noise -1", ("--split-noise is -1.0", "within [0, 1)")),
            (
                "--split-noise 0.1",
                ("--split-noise", "--extra-senses split", "give both or neither"),
            ),
            ("--extra-senses some", ("--extra-senses", "invalid choice: 'some'")),
            ("--ema", ("--ema: ", "model.pt holds no averages", "--store-ema")),
            ("--data {work}/bin --dict {work}/two", ("--dict", "not allowed with", "--data")),
        )
    ]
)

TRAINING = (
    [
        Misuse(f"fairseq-train {flags}", says)
        for flags, says in (
            ("--sense-decay=-1e-5", ("--sense-decay is -1e-05", "within [0, 1)")),
            ("--log-prob-threshold 0.5", ("--log-prob-threshold is 0.5", "use 0 or less")),
            ("--log-prob-threshold nan", ("--log-prob-threshold is nan", "use 0 or less")),
            ("--reallocation-interval 0", ("--reallocation-interval is 0", "--reallocation none")),
            ("--max-moves 0", ("--max-moves is 0.0", "--reallocation none")),
            ("--total-senses nan", ("--total-senses is nan", "1 or more")),
            ("--kernel rfb", ("--kernel: invalid choice: 'rfb'", "did you mean rbf?")),
            ("--kernel-gamma 1", ("--kernel-gamma", "leave it out")),
            ("--kernel rbf --kernel-gamma -1", ("--kernel-gamma is -1.0", "above 0")),
            (
                "--output-layer mixture --mixture-kernels lin,lgo",
                ("--mixture-kernels", "'lgo'", "give names from"),
            ),
            (
                "--output-layer mos --mixture-components 0",
                ("--mixture-components is 0", "1 or more"),
            ),
            ("--mixture-regularization -1", ("--mixture-regularization is -1.0", "0 or more")),
            ("--label-smoothing 1.5", ("--label-smoothing is 1.5", "within [0, 1)")),
            (
                "--sense-decya 0.1",
                ("unrecognized arguments: --sense-decya 0.1", "mean --sense-decay?"),
            ),
            (
                "--sense-bias --output-layer mos",
                ("--sense-bias", "--output-layer mos", "leave it out"),
            ),
            ("--hidden-size 5", ("--hidden-size is 5", "use an even number")),
            ("--fp16", ("--fp16 needs a GPU", "leave it out")),
            ("--fp16 --bf16", ("--fp16", "--bf16")),
            ("--arch gru_lm_kerbs", ("--arch gru_lm_kerbs", "use --task language_modeling")),
            ("--finetune-from-model {work}/nan.pt", ("log_prob'", "take an earlier checkpoint")),
            (
                "--finetune-from-model {work}/turned.pt",
                ("source dictionary of", "in another order"),
            ),
            ("--restore-file {work}/turned.pt", ("source dictionary of", "in another order")),
            (f"--finetune-from-model {MODEL} --total-senses 2", ("783 senses", "--total-senses")),
            (f"--finetune-from-model {MODEL} --layers 2", ("has no encoder.rnn.weight_", "layers")),
            (
                f"--finetune-from-model {MODEL} --hidden-size 8",
                ("encoder.rnn.weight_ih_l0", "sizes"),
            ),
            (
                "--arch transformer_kerbs --encoder-embed-dim 8 --encoder-attention-heads 3",
                ("--encoder-attention-heads is 3", "must divide --encoder-embed-dim 8"),
            ),
        )
    ]
    + [
        # one bit in the numbers of a tensor, for every program that loads a checkpoint
        Misuse(f"fairseq-{command}", ("bit.pt is no whole checkpoint", "take another"))
        for command in (
            "train --restore-file {work}/bit.pt",
            "train --finetune-from-model {work}/bit.pt",
            "generate --path {work}/bit.pt",
            "interactive --path {work}/bit.pt",
            "validate --path {work}/bit.pt --task translation --batch-size 2",
            "eval-lm --path {work}/bit.pt --task translation",
        )
    ]
    + [
        Misuse("fairseq-train --save-dir {out}/file", ("--save-dir: ", "file cannot be written")),
    ]
)

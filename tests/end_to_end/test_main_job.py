"""The main job as a user does it, by the scripts: training, translation, senses; and perplexity."""

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq_cli import eval_lm
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import fairseq_kerbs.criterions
import fairseq_kerbs.models  # noqa: F401  (registers)
from fairseq_kerbs.data.toy import write_toy_corpus
from tests.helpers.commands import ROOT, USER_DIR, make_checkout, run, run_program, standing_in

pytestmark = pytest.mark.slow

CONFIG = ROOT / "configs" / "toy.yaml"
TRAIN = ROOT / "scripts" / "train.sh"  # the one script whose programs are started anew
TRANSLATED = "save dir/generate-test.txt"
TINY = """
    --encoder-embed-dim 32 --decoder-embed-dim 32 --encoder-ffn-embed-dim 64
    --decoder-ffn-embed-dim 64 --max-update 30 --reallocation-interval 5 --log-interval 10
    --warmup-updates 5 --num-workers 0
""".split()  # noqa: SIM905


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scripts whose programs are those that stand in."""
    return make_checkout(tmp_path_factory.mktemp("checkout")) / "scripts"


def run_script(*command: object, cwd: Path, status: int = 0) -> str:
    """All that one of these scripts prints."""
    environment: Any = standing_in()
    return run_program(*command, cwd=cwd, status=status, **environment)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, scripts: Path) -> Path:
    """A toy corpus (text/), binarized (data/bin), a model and translations (save dir/)."""
    folder = tmp_path_factory.mktemp("work")
    run("fairseq-kerbs", "toy", folder / "text", "--train", 800, "--valid", 40, "--test", 150)
    run_script(
        scripts / "prepare_parallel.sh",
        "--train",
        folder / "text/train",
        "--valid",
        "text/valid",
        "--test",
        "text/test",
        "--source-lang",
        "de",
        "--target-lang",
        "en",
        "--merges",
        500,
        "--workers",
        1,
        "--dest",
        "data",
        cwd=folder,
    )
    log = run_program(
        TRAIN, CONFIG, "data/bin", "save dir", *TINY, "--tensorboard-logdir", "tb", cwd=folder
    )
    (folder / "train.log").write_text(log, encoding="utf-8")
    log = run_script(
        scripts / "generate.sh",
        CONFIG,
        "data/bin",
        "save dir",
        "--max-len-b",
        20,
        "--reference",
        "text/test.en",
        cwd=folder,
    )
    (folder / "generate.log").write_text(log, encoding="utf-8")
    return folder


def test_training_learns_moves_senses_and_tells_tensorboard(work: Path) -> None:
    log = (work / "train.log").read_text(encoding="utf-8")
    assert "--max-update 30" in log.splitlines()[1]
    losses = [float(value) for value in re.findall(r"train_inner.* loss=([0-9.]+)", log)]
    assert losses[-1] < losses[0] - 0.5
    assert "senses placed on clusters" in log
    assert sum(map(int, re.findall(r"train_inner.* senses_moved=([0-9]+)", log))) > 0
    events = EventAccumulator(str(work / "tb" / "train_inner"))
    events.Reload()
    expected = {"senses_moved", "theta_q05", "theta_q50", "theta_q95"}
    expected |= {f"words_with_{number}" for number in range(1, 5)}
    assert expected <= set(events.Tags()["scalars"])


def test_translation_gives_bleu_and_a_command_to_paste(work: Path) -> None:
    output = work / TRANSLATED
    reference = ("--reference", work / "text" / "test.en")
    said = (work / "generate.log").read_text(encoding="utf-8").splitlines()
    assert re.match(r"BLEU\|nrefs:1\|case:mixed\|eff:no\|tok:13a\|.*version:.* = [0-9.]+", said[-1])
    score = run("fairseq-kerbs", "score", "--hypotheses", output, *reference, cwd=work)
    assert score.splitlines()[0] == said[-1]
    program, *pasted = shlex.split(said[1])
    assert pasted[-2:] == [">", TRANSLATED]
    again = run(Path(program).name, *pasted[:-2], cwd=work)
    expected = re.findall("^H-.*", output.read_text(), re.MULTILINE)
    assert len(expected) == 150
    assert re.findall("^H-.*", again, re.MULTILINE) == expected


def test_raw_text_is_translated_line_by_line(work: Path, scripts: Path) -> None:
    raw = (work / "text" / "test.de").read_text(encoding="utf-8").splitlines()
    strange = ["", "☃ \u2028 ☃", "und " * 1100, "\x01"]
    flags = ("--print-senses", "--max-len-b", 20)
    translate = (scripts / "translate.sh", CONFIG, "data/bin", "save dir", *flags)
    command = [str(part) for part in translate]
    text = "\n".join([*raw, *strange, raw[0]])  # the last line without its end
    how: Any = {"capture_output": True, "text": True, "cwd": work, "env": standing_in()}
    done = subprocess.run(command, input=text, **how)
    says = "fairseq-kerbs: too long for the model and left empty: line 153; divide the text\n"
    assert (done.returncode, done.stderr) == (1, says)
    *lines, last, end = done.stdout.split("\n")
    texts = [line.partition("\t")[0] for line in lines]
    detokenized = run("fairseq-kerbs", "detokenize", "--lang", "en", work / TRANSLATED).splitlines()
    same = [a == b for a, b in zip(texts, detokenized, strict=False)]
    assert sum(same) >= 145  # another batch may round otherwise
    assert lines[150] == lines[152] == lines[153] == end == ""
    for line in [*lines[:150], lines[151], last]:
        assert re.fullmatch(r"[^\t@]*\t(\S+#[1-4]:[01]\.\d{4} )*</s>#[1-4]:[01]\.\d{4}", line)
    assert last.partition("\t")[0] == texts[0]


def test_a_misspelt_flag_of_a_configuration_is_named(work: Path, tmp_path: Path) -> None:
    config = tmp_path / "own.yaml"
    config.write_text(f"extends: {CONFIG}\ngenerate:\n  baem: 3\n")
    more = ("data/bin", "save dir", "--refrence", "x", "--output", tmp_path / "output")
    said = run("fairseq-kerbs", "generate", config, *more, cwd=work, status=2)
    wrong = f"error: unrecognized arguments: --baem 3 --refrence x (--baem is in {config})"
    assert said.splitlines()[-1] == f"fairseq-generate: {wrong}"
    assert {file.name for file in tmp_path.iterdir()} == {"own.yaml"}


def test_senses_of_ambiguous_words_are_reported(work: Path) -> None:
    report = work / "senses.json"
    flags = ("--data", work / "data/bin", "--gold", work / "text/test.senses.tsv", "--json", report)
    output = run("fairseq-kerbs", "senses", work / "save dir" / "checkpoint_best.pt", *flags)
    assert re.search(r"^mean of \d+ words, \d+ occurrences", output, re.MULTILINE)
    found = json.loads(report.read_text())
    measures = found["gold"]["all"].keys()
    assert {"senses.v_measure", "kmeans.ari", "probe.ami", "sign.ami"} <= measures
    words = {word["word"]: word for word in found["words"]}
    assert {"bank", "spring", "light", "match"} <= set(words)
    assert all(1 <= len(word["senses"]) <= 4 for word in words.values())


def test_a_refusal_of_fairseq_leaves_the_old_output(
    work: Path, scripts: Path, tmp_path: Path
) -> None:
    torch.save({"model": {}, "cfg": {}}, tmp_path / "checkpoint_best.pt")  # whole, but incomplete
    (tmp_path / "generate-test.txt").write_text("earlier output\n")
    run_script(scripts / "generate.sh", CONFIG, "data/bin", tmp_path, cwd=work, status=1)
    assert (tmp_path / "generate-test.txt").read_text() == "earlier output\n"
    names = {"checkpoint_best.pt", "generate-test.txt", "traceback.txt"}
    assert {f.name for f in tmp_path.iterdir()} == names


TASK = ("--task", "language_modeling", "--tokens-per-sample", 12, "--cpu", "--num-workers", 0)
TRAINING = (
    "--criterion",
    "kerbs_cross_entropy",
    "--optimizer",
    "adam",
    "--lr",
    0.01,
    "--batch-size",
    16,
    "--max-update",
    30,
    "--reallocation-interval",
    10,
    "--seed",
    2,
    "--embed-dim",
    16,
    "--hidden-size",
    24,
    "--no-epoch-checkpoints",
    "--log-interval",
    10,
    "--log-format",
    "simple",
)


def fairseq(program: str, data: Path, *flags: object) -> str:
    return run(f"fairseq-{program}", data, *USER_DIR, *TASK, *flags)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory, scripts: Path) -> Path:
    """Sentences of the toy corpus, binarized (bin), and a model."""
    folder = tmp_path_factory.mktemp("texts")
    write_toy_corpus(folder, train=400, valid=30, test=25)
    (folder / "text").mkdir()
    for split in ("train", "valid", "test"):
        (folder / f"{split}.en").rename(folder / "text" / f"toy.{split}.tokens")
    run_script(
        scripts / "prepare_lm.sh",
        folder / "text",
        "--dest",
        folder / "data",
        "--words",
        22,
        "--workers",
        1,
        cwd=folder,
    )
    kept = (folder / "data" / "bin" / "dict.txt").read_text().split()[::2]
    assert len([word for word in kept if not word.startswith("madeupword")]) == 22
    training = ("--arch", "gru_lm_kerbs", *TRAINING, "--save-dir", folder / "gru")
    log = fairseq("train", folder / "data" / "bin", *training)
    losses = [float(value) for value in re.findall(r"train_inner.* loss=([0-9.]+)", log)]
    assert losses[-1] < losses[0] - 0.2
    assert sum(map(int, re.findall(r"train_inner.* senses_moved=([0-9]+)", log))) > 0
    return folder


def evaluate(texts: Path, *flags: object) -> float:
    """What fairseq-eval-lm finds, in bits for each word; in this process, with all its digits."""
    words = (texts / "data" / "bin", *TASK, "--path", texts / "gru" / "checkpoint_best.pt", *flags)
    parsed = options.parse_args_and_arch(options.get_eval_lm_parser(), [*map(str, words)])
    return float(eval_lm.main(convert_namespace_to_omegaconf(parsed))["loss"])


def test_perplexity_is_that_of_validation(texts: Path) -> None:
    path = ("--path", texts / "gru" / "checkpoint_best.pt", "--batch-size", 5)
    validated = fairseq("validate", texts / "data" / "bin", *path, "--valid-subset", "test")
    evaluated = fairseq("eval-lm", texts / "data" / "bin", *path, "--gen-subset", "test")
    nll = float(re.findall(r"nll_loss ([0-9.]+)", validated)[-1])
    (loss, perplexity), *_ = re.findall(r"2\): ([0-9.]+), Perplexity: ([0-9.]+)", evaluated)
    assert abs(float(loss) - nll) < 1e-3
    assert abs(float(perplexity) - 2**nll) < 0.02


def test_context_window_gives_every_word_its_whole_past(texts: Path) -> None:
    """Small blocks with a window over the whole text, in batches, are as good as one block."""
    whole = evaluate(texts, "--tokens-per-sample", 400)
    blocks = ("--tokens-per-sample", 420, "--context-window", 400, "--batch-size", 3)
    assert evaluate(texts, *blocks, "--softmax-batch", 10) == pytest.approx(whole, rel=1e-5)
    assert abs(evaluate(texts, "--tokens-per-sample", 4, "--batch-size", 3) - whole) > 1e-3

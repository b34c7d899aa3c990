"""The main job as a user does it: corpus, training, translation, senses, by the scripts."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from zipfile import ZipFile

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.helpers.commands import ENVIRONMENT, ROOT, Command, run, run_program, run_together

pytestmark = pytest.mark.slow

CONFIG = ROOT / "configs" / "toy.yaml"
TRAIN, GENERATE = (ROOT / "scripts" / f"{name}.sh" for name in ("train", "generate"))
TINY = """
    --encoder-embed-dim 32 --decoder-embed-dim 32 --encoder-ffn-embed-dim 64
    --decoder-ffn-embed-dim 64 --max-update 30 --reallocation-interval 5 --log-interval 10
    --warmup-updates 5 --num-workers 0
""".split()  # noqa: SIM905


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a toy corpus (text/), binarized (data/bin), and a model (save dir/)."""
    folder = tmp_path_factory.mktemp("work")
    text = folder / "text"
    run("fairseq-kerbs", "toy", text, "--train", 800, "--valid", 40, "--test", 150)
    run_program(
        *(ROOT / "scripts" / "prepare_parallel.sh", "--train", text / "train"),
        *("--valid", "text/valid", "--test", "text/test", "--merges", 500),
        *("--source-lang", "de", "--target-lang", "en", "--dest", "data", "--workers", 1),
        cwd=folder,
    )
    log = run_program(
        *(TRAIN, CONFIG, "data/bin", "save dir", *TINY, "--tensorboard-logdir", "tb"), cwd=folder
    )
    (folder / "train.log").write_text(log, encoding="utf-8")
    return folder


def test_training_learns_and_moves_senses(work: Path) -> None:
    log = (work / "train.log").read_text(encoding="utf-8")
    assert "--max-update 30" in log.splitlines()[1]
    losses = [float(value) for value in re.findall(r"train_inner.* loss=([0-9.]+)", log)]
    assert losses[-1] < losses[0] - 0.5
    assert "senses placed on clusters" in log
    moved = re.findall(r"train_inner.* senses_moved=([0-9]+)", log)
    assert sum(int(value) for value in moved) > 0


def test_sense_statistics_reach_tensorboard(work: Path) -> None:
    events = EventAccumulator(str(work / "tb" / "train_inner"))
    events.Reload()
    expected = {"senses_moved", "theta_q05", "theta_q50", "theta_q95"}
    expected |= {f"words_with_{number}" for number in range(1, 5)}
    assert expected <= set(events.Tags()["scalars"])


@pytest.fixture(scope="module")
def generated(work: Path) -> Path:
    """The test set's translations, and in generate.log what was said."""
    shared = (CONFIG, "data/bin", "save dir", "--max-len-b", 20, "--reference", "text/test.en")
    (work / "generate.log").write_text(run_program(GENERATE, *shared, cwd=work), encoding="utf-8")
    return work / "save dir" / "generate-test.txt"


def test_translation_gives_bleu_and_a_command_that_can_be_pasted(
    work: Path, generated: Path
) -> None:
    output, reference = generated, ("--reference", work / "text" / "test.en")
    said = (work / "generate.log").read_text(encoding="utf-8").splitlines()
    assert re.match(r"BLEU\|nrefs:1\|case:mixed\|eff:no\|tok:13a\|.*version:.* = [0-9.]+", said[-1])
    score = run("fairseq-kerbs", "score", "--hypotheses", output, *reference, cwd=work)
    assert score.splitlines()[0] == said[-1]
    program, *pasted = shlex.split(said[1])
    assert pasted[-2:] == [">", "save dir/generate-test.txt"]
    again = run(Path(program).name, *pasted[:-2], cwd=work)
    expected = re.findall("^H-.*", output.read_text(), re.MULTILINE)
    assert len(expected) == 150
    assert re.findall("^H-.*", again, re.MULTILINE) == expected


def test_raw_text_is_translated_line_by_line(work: Path, generated: Path) -> None:
    raw = (work / "text" / "test.de").read_text(encoding="utf-8").splitlines()
    strange = ["", "☃ \u2028 ☃", "und " * 1100]
    command = [ROOT / "scripts" / "translate.sh", CONFIG, "data/bin", "save dir", "--print-senses"]
    done = subprocess.run(
        list(map(str, [*command, "--max-len-b", 20])),
        input="\n".join([*raw, *strange, raw[0]]),  # the last line without its end
        capture_output=True,
        text=True,
        cwd=work,
        env=os.environ | ENVIRONMENT,
    )
    assert done.stderr == (
        "fairseq-kerbs: too long for the model and left empty: line 153; divide the text\n"
    )
    assert done.returncode == 1
    *lines, last, end = done.stdout.split("\n")
    texts = [line.partition("\t")[0] for line in lines]
    detokenized = run("fairseq-kerbs", "detokenize", "--lang", "en", generated).splitlines()
    same = [a == b for a, b in zip(texts, detokenized, strict=False)]
    assert sum(same) >= 145  # another batch may round otherwise
    assert lines[150] == lines[152] == end == ""
    for line in [*lines[:150], lines[151], last]:
        assert re.fullmatch(r"[^\t@]*\t(\S+#[1-4]:[01]\.\d{4} )*</s>#[1-4]:[01]\.\d{4}", line)
    assert last.partition("\t")[0] == texts[0]


def test_a_misspelt_flag_of_a_configuration_is_named(work: Path, tmp_path: Path) -> None:
    config = tmp_path / "own.yaml"
    config.write_text(f"extends: {CONFIG}\ngenerate:\n  baem: 3\n")
    more = ("data/bin", "save dir", "--refrence", "x", "--output", tmp_path / "output")
    ((status, said),) = run_together(
        Command("fairseq-kerbs", ("generate", config, *more), cwd=work)
    )
    assert status == 2
    wrong = "error: unrecognized arguments: --baem 3 --refrence x"
    assert said.splitlines()[-1] == f"fairseq-generate: {wrong}"
    assert {file.name for file in tmp_path.iterdir()} == {"own.yaml"}


def test_senses_of_ambiguous_words_are_reported(work: Path) -> None:
    report = work / "senses.json"
    output = run(
        *("fairseq-kerbs", "senses", work / "save dir" / "checkpoint_best.pt"),
        *("--data", work / "data" / "bin", "--gold", work / "text" / "test.senses.tsv"),
        *("--json", report),
    )
    assert re.search(r"^mean of \d+ words, \d+ occurrences", output, re.MULTILINE)
    found = json.loads(report.read_text())
    assert {"senses.v_measure", "kmeans.ari", "probe.ami", "sign.ami"} <= found["gold"][
        "all"
    ].keys()
    words = {word["word"]: word for word in found["words"]}
    assert {"bank", "spring", "light", "match"} <= set(words)
    assert all(1 <= len(word["senses"]) <= 4 for word in words.values())


def test_a_refusal_of_fairseq_ends_the_script_and_leaves_the_old_output(
    work: Path, tmp_path: Path
) -> None:
    ZipFile(tmp_path / "checkpoint_best.pt", "w").close()  # whole, but without a model
    (tmp_path / "generate-test.txt").write_text("earlier output\n")
    run_program(GENERATE, CONFIG, "data/bin", tmp_path, cwd=work, succeeds=False)
    assert (tmp_path / "generate-test.txt").read_text() == "earlier output\n"
    assert {f.name for f in tmp_path.iterdir()} == {"checkpoint_best.pt", "generate-test.txt"}

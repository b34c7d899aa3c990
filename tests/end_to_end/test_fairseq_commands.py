"""Every stock command and feature of fairseq on tiny data, with its own models and with ours."""

import math
import re
import shlex
from pathlib import Path

import pytest
import sacrebleu
import torch

from fairseq_kerbs.checkpoints import read_checkpoint
from tests.end_to_end.conftest import Train
from tests.helpers import tiny_trainings as tiny
from tests.helpers.commands import ROOT, USER_DIR, run
from tests.helpers.resumable_trainings import load

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("arch", tiny.FLAGS)
def test_train_and_validate(arch: str, trained: Train, parallel_data: Path) -> None:
    """The restored model has the loss that training validated before it saved the checkpoint."""
    model = trained(arch)
    assert tiny.figure(r"num_updates (\d+)", model.output) == tiny.UPDATES
    assert 1.0 < tiny.figure(r"train \| .* \| loss ([\d.]+)", model.output) < 20.0
    (events,) = (model.folder / "log" / "train").glob("events.out.tfevents.*")
    assert events.stat().st_size > 0
    output = run(
        "fairseq-validate",
        parallel_data,
        "--task",
        "translation",
        "--path",
        model.checkpoint,
        "--max-tokens",
        "100",
        "--cpu",
        *tiny.criterion(arch),
    )
    found, kept = (tiny.figure(r"valid.* \| nll_loss ([\d.]+)", o) for o in (output, model.output))
    assert found == pytest.approx(kept, abs=2e-3)


def bleu(output: str, sources: list[str]) -> float:
    """BLEU of what fairseq-generate printed for all sources, whose references are in capitals."""
    found = tiny.hypotheses(output)
    assert sorted(found) == [*range(len(sources))]
    references = [line.upper() for line in sources]
    translations = [found[number] for number in range(len(sources))]
    return float(sacrebleu.corpus_bleu(translations, [references], tokenize="none").score)


@pytest.mark.parametrize("arch", tiny.FLAGS)
def test_generate_and_interactive_agree(arch: str, trained: Train, parallel_data: Path) -> None:
    """One translates padded batches of seven, the other sentence by sentence, without padding."""
    flags = ["--path", trained(arch).checkpoint, "--beam", "3", "--max-len-b", "12", "--cpu"]
    flags += USER_DIR if arch.endswith("_kerbs") else ()
    batched = run(
        "fairseq-generate", parallel_data, *flags, "--batch-size", "7", "--scoring", "sacrebleu"
    )
    lines = "".join(f"{line}\n" for line in tiny.sources()[-tiny.TEST_PAIRS :])
    alone = run("fairseq-interactive", parallel_data, *flags, stdin=lines)
    score = tiny.figure(r"Generate test with beam=3: \D*BLEU\D* ([\d.]+)", batched)
    assert score == pytest.approx(bleu(batched, tiny.sources()[-tiny.TEST_PAIRS :]), abs=0.006)
    assert tiny.hypotheses(alone) == tiny.hypotheses(batched)


def test_checkpoint_of_an_unedited_fairseq(
    trained: Train, parallel_data: Path, tmp_path: Path
) -> None:
    """It holds copies of the weights of each encoder layer; without them the model is the same."""
    new = trained("transformer").checkpoint
    old = tmp_path / "old.pt"
    state = torch.load(new, weights_only=False)
    weights = state["model"]
    layer = "encoder.layers.0."
    for part in ("weight", "bias"):
        for name in ("self_attn.out_proj", "fc1", "fc2"):
            weights[f"{layer}{name.rpartition('.')[2]}_{part}"] = weights[f"{layer}{name}.{part}"]
        parts = [weights[f"{layer}self_attn.{name}_proj.{part}"] for name in "qkv"]
        weights[f"{layer}in_proj_{part}"] = torch.cat(parts)
    torch.save(state, old)
    outputs = [
        run("fairseq-generate", parallel_data, "--path", path, *tiny.DECODING)
        for path in (new, old)
    ]
    expected, found = map(tiny.hypotheses, outputs)
    assert len(expected) == tiny.TEST_PAIRS
    assert found == expected


HYDRA = """
common.cpu=true common.log_format=simple common.log_interval=1 optimizer=adam optimization.lr=[0.01]
optimization.max_update=2 lr_scheduler=fixed dataset.max_tokens=100 dataset.num_workers=0
""".split()  # noqa: SIM905


def test_hydra_train_and_eval_lm(tmp_path: Path) -> None:
    """A model from fairseq's own configuration files; its perplexity is what training validated."""
    text = tmp_path / "bin"
    splits = {"train": tiny.sources()[20:], "valid": tiny.sources()[:20]}
    for split, lines in splits.items():
        tiny.write_lines(tmp_path / split, lines)
    prefixes = [f"--{split}pref={tmp_path / split}" for split in splits]
    run("fairseq-preprocess", "--only-source", *prefixes, "--destdir", text)
    sizes = {
        "layers": 1,
        "embed_dim": 16,
        "ffn_embed_dim": 32,
        "input_dim": 16,
        "output_dim": 16,
        "attention_heads": 2,
    }
    overrides = [f"model.transformer_lm.decoder_{name}={value}" for name, value in sizes.items()]
    trained = run(
        "fairseq-hydra-train",
        *HYDRA,
        "task=language_modeling",
        f"task.data={text}",
        "task.tokens_per_sample=20",
        "task.sample_break_mode=none",
        "criterion=cross_entropy",
        "model=transformer_lm/transformer_lm_gpt",
        *overrides,
        f"checkpoint.save_dir={tmp_path}",
        cwd=tmp_path,
    )
    assert tiny.figure(r"num_updates (\d+)", trained) == 2
    output = run(
        "fairseq-eval-lm",
        text,
        "--path",
        tmp_path / "checkpoint_last.pt",
        "--cpu",
        "--tokens-per-sample",
        "20",
        "--sample-break-mode",
        "none",
        "--gen-subset",
        "valid",
        "--batch-size",
        "4",
    )
    perplexity = tiny.figure(r"valid.* \| ppl ([\d.]+)", trained)
    assert tiny.figure(r"Perplexity: ([\d.]+)", output) == pytest.approx(perplexity, abs=0.02)


def test_hydra_train_as_documented(parallel_data: Path, tmp_path: Path) -> None:
    """By docs/train.md; it goes on, also by the search path alone, and its model translates."""
    page = (ROOT / "docs/train.md").read_text()
    (text,) = re.findall(r"^    (fairseq-hydra-train (?:.*\\\n)+.*)\n", page, re.MULTILINE)
    for written, real in (
        ("quickstart/data/bin", parallel_data),
        ("runs", tmp_path),
        ("", f"{ROOT}/"),
    ):
        text = text.replace(f"$PWD/{written}", str(real))
    program, *arguments = shlex.split(text.replace("\\\n", " "))
    output = run(program, *arguments, "optimization.max_update=2", "common.cpu=true", cwd=tmp_path)
    assert re.search("'encoder_embed_dim': 128,.*'_name': 'kerbs_cross_entropy'", output)
    assert tiny.figure(r"num_updates (\d+)", output) == 2
    arguments.remove(f"common.user_dir={ROOT}/fairseq_kerbs")
    output = run(program, *arguments, "optimization.max_update=3", "common.cpu=true", cwd=tmp_path)
    assert tiny.figure(r"Loaded checkpoint .* @ (\d+) updates", output) == 2
    assert tiny.figure(r"num_updates (\d+)", output) == 3
    best = tmp_path / "hydra/checkpoint_best.pt"
    read_checkpoint(best)  # without trust
    output = run("fairseq-generate", parallel_data, *USER_DIR, "--path", best, *tiny.DECODING)
    assert len(tiny.hypotheses(output)) == tiny.TEST_PAIRS


KERBS = ["--criterion", "kerbs_cross_entropy", "--label-smoothing", "0.1"]
# every word takes a sense whenever it can: what moves depends on all statistics
MOVING = ["--reallocation", "paper", "--reallocation-interval", "2"]
MOVING += ["--log-prob-threshold", "-0.01", "--sense-decay", "1e-3"]
# no statistics: those come with our criterion alone
STILL = ["--sense-decay", "0", "--max-update", "3", "--dropout", "0.0"]


def train(data: Path, save_dir: Path, arch: str, *flags: object) -> str:
    """Train one of our models; later flags win over earlier ones."""
    arguments = (*USER_DIR, *tiny.COMMON, "--arch", arch, *flags, "--save-dir", save_dir)
    return run("fairseq-train", data, *arguments)


def generate(data: Path, paths: list[Path], *flags: object) -> str:
    path = ("--path", ":".join(map(str, paths)))
    return run("fairseq-generate", data, *path, *USER_DIR, *tiny.DECODING, *flags)


def scores(output: str) -> dict[int, float]:
    """Sentence number to the best hypothesis' score, from what fairseq-generate printed."""
    found = re.findall(r"^H-(\d+)\t(\S+)\t", output, re.MULTILINE)
    return {int(number): float(score) for number, score in found}


def test_fairseqs_own_label_smoothing_trains_the_same_model(
    parallel_data: Path, tmp_path: Path
) -> None:
    arch = "transformer_kerbs"
    train(parallel_data, tmp_path / "ours", arch, *tiny.FLAGS[arch], *STILL, *KERBS)
    train(
        parallel_data,
        tmp_path,
        arch,
        *tiny.FLAGS[arch],
        *STILL,
        "--criterion",
        "label_smoothed_cross_entropy",
        "--label-smoothing",
        "0.1",
    )
    theirs = load(tmp_path / "checkpoint_last.pt")["model"]
    for key, value in load(tmp_path / "ours" / "checkpoint_last.pt")["model"].items():
        # contexts are sampled by our criterion alone; fairseq leaves the last uninitialized
        if not re.search(r"[.](inventory|sample_|_float_tensor)", key):
            torch.testing.assert_close(value, theirs[key], rtol=2e-3, atol=2e-4, msg=key)


def test_training_with_many_features_at_once(parallel_data: Path, tmp_path: Path) -> None:
    flags = [*tiny.FLAGS["lstm_kerbs"], *KERBS, *MOVING, "--max-update", "4", "--lr", "1e-4"]
    flags += ["--amp", "--update-freq", "2", "--dropout", "0.0", "--left-pad-target"]
    flags += ["--eval-bleu", "--eval-bleu-args", '{"beam": 2, "max_len_b": 12}']
    flags += ["--eval-bleu-remove-bpe", "--best-checkpoint-metric", "bleu"]
    flags += ["--maximize-best-checkpoint-metric"]
    log = train(parallel_data, tmp_path, "lstm_kerbs", *flags)
    assert re.findall(r"reallocation after (\d+) updates", log)[0] == "2"
    last = tmp_path / "checkpoint_last.pt"
    output = generate(parallel_data, [last], "--gen-subset", "valid", "--beam", "2")
    expected = pytest.approx(bleu(output, tiny.sources()[-40:-20]), abs=0.006)
    assert tiny.figure(r"valid on .* \| bleu ([\d.]+)", log) == expected


def test_reference_scores_are_the_ensembles(
    trained: Train, parallel_data: Path, tmp_path: Path
) -> None:
    paths = [trained(arch).checkpoint for arch in ("transformer_kerbs", "lstm_kerbs")]
    recursion = ("--model-overrides", "{'composition_passes': -1}")  # as decoding takes it
    output = generate(parallel_data, paths, "--beam", "2", *recursion)
    found = tiny.hypotheses(output)
    assert len(found) == tiny.TEST_PAIRS
    tiny.write_lines(tmp_path / "test.de", tiny.sources()[-tiny.TEST_PAIRS :])
    tiny.write_lines(tmp_path / "test.en", [found[number] for number in range(tiny.TEST_PAIRS)])
    run(
        "fairseq-preprocess",
        "-s",
        "de",
        "-t",
        "en",
        "--testpref",
        tmp_path / "test",
        "--destdir",
        tmp_path,
        "--srcdict",
        parallel_data / "dict.de.txt",
        "--tgtdict",
        parallel_data / "dict.en.txt",
    )
    again = generate(tmp_path, paths, "--score-reference", *recursion)
    assert scores(again) == pytest.approx(scores(output), abs=2e-3)


def test_prefixes_and_sampling(trained: Train, parallel_data: Path) -> None:
    path = [trained("lstm_kerbs").checkpoint]
    flags = ("--prefix-size", "2", "--beam", "3", "--print-alignment", "hard")
    prefixed = tiny.hypotheses(generate(parallel_data, path, *flags))
    assert len(prefixed) == tiny.TEST_PAIRS
    references = [line.upper().split() for line in tiny.sources()[-tiny.TEST_PAIRS :]]
    for number, answer in prefixed.items():
        assert answer.split()[:2] == references[number][:2]
    sampled = generate(parallel_data, path, "--sampling", "--sampling-topp", "0.9", "--beam", "1")
    assert len(tiny.hypotheses(sampled)) == tiny.TEST_PAIRS


def test_mixtures_train_validate_and_translate(parallel_data: Path, tmp_path: Path) -> None:
    layers = {
        "transformer_kerbs": [*tiny.TRANSFORMER, "--output-layer", "mos"],
        "lstm_kerbs": [
            "--hidden-size",
            "16",
            "--embed-dim",
            "16",
            "--output-layer",
            "mixture",
            "--mixture-kernels",
            "lin,log",
        ],
    }
    for arch, count in (("transformer_kerbs", 3), ("lstm_kerbs", 2)):
        log = train(
            parallel_data,
            tmp_path / arch,
            arch,
            *layers[arch],
            *KERBS,
            "--max-update",
            "4",
            "--mixture-regularization",
            "0.1",
        )
        losses = re.findall(r"train_inner.* nll_loss=([0-9.]+)", log)
        assert float(losses[-1]) < float(losses[0])
        weights = (rf"train_inner.* mixture_weight_{k}=([0-9.]+)" for k in range(count))
        assert sum(tiny.figure(each, log) for each in weights) == pytest.approx(1.0, abs=1e-3)
        assert "mixture_variance=" in log
    paths = [tmp_path / arch / "checkpoint_last.pt" for arch in layers]
    found = scores(generate(parallel_data, paths, "--beam", "3"))
    assert len(found) == tiny.TEST_PAIRS
    assert all(math.isfinite(score) for score in found.values())
    validated = run(
        "fairseq-validate",
        parallel_data,
        *USER_DIR,
        "--path",
        paths[1],
        "--task",
        "translation",
        "--cpu",
        "--batch-size",
        "10",
    )
    assert "mixture_weight_1" in validated

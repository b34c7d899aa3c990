"""Contexts of words from tiny models of Hugging Face, and their figure (Figure 1 of the paper)."""

import csv
import json
import pickle
import re
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

from matplotlib.colors import to_hex
from safetensors.torch import load_file, save_file
from transformers import (
    AutoTokenizer,
    BertForMaskedLM,
    BertLMHeadModel,
    BertModel,
    GPT2LMHeadModel,
    RobertaConfig,
    RobertaForMaskedLM,
    T5Config,
    ViTConfig,
)

from fairseq_kerbs.analysis import plots
from fairseq_kerbs.analysis.hugging_face import (
    LanguageModel,
    _pattern,
    context_vectors,
    find_occurrences,
    load_language_model,
)
from fairseq_kerbs.utils.errors import UserError
from tests.helpers import tiny_language_models as tiny
from tests.helpers.cli import Capsys, Patch, kerbs
from tests.helpers.commands import run_program

LINES = [
    "The Computer is on .",
    "the monitor is on the car .",
    "a vehicle , a car",
    "",
    "monitor the computer",
    "i monitor a monitor , monitored .",  # the last is another word
    "computer",
    "the monitor's vehicle is on a car , a Vehicle ! the car",  # longer than BERT reads
    "VEHICLE monitor",
]
WORDS = ["computer", "monitor", "car", "vehicle"]
FIGURE_1 = ["--word", "computer", "--word", "monitor", "--word", "car", "vehicle"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models by name, and the ``text``."""
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("models")
    (folder / "text").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    # then "vehicle" has several pieces
    training = [line.replace("vehicle", "vehi") for line in LINES * 3]
    return {
        "text": folder / "text",
        "bert": tiny.make_bert(folder / "bert"),
        "cased": tiny.make_bert(folder / "cased", lowercase=False),
        "gpt2": tiny.make_gpt2(folder / "gpt2", training),
        "no_begin": tiny.make_gpt2(folder / "no_begin", training, begin=False),
    }


@torch.no_grad()
def test_contexts_of_a_masked_model_are_outputs_at_the_word(folders: dict[str, Path]) -> None:
    """Of a word of two pieces the mean; batches with padding change nothing."""
    model = load_language_model(folders["bert"])
    found = find_occurrences(model, folders["text"], WORDS, 100, 1)
    bert, tokenizer = (
        kind.from_pretrained(folders["bert"]) for kind in (BertForMaskedLM, AutoTokenizer)
    )
    expected: dict[str, list[tuple[int, torch.Tensor]]] = {word: [] for word in WORDS}
    for number, line in enumerate(LINES, start=1):
        tokens = [*[2, *tokenizer(line, add_special_tokens=False)["input_ids"]][:11], 3]
        output = bert.bert(input_ids=torch.tensor([tokens])).last_hidden_state[0]
        for at, token in enumerate(tokens):
            piece = tiny.PIECES[token]
            if piece in ("computer", "monitor", "car"):
                expected[piece].append((number, output[at]))
            elif piece == "##cle":
                expected["vehicle"].append((number, (output[at - 1] + output[at]) / 2))
    counts = {word: (found[word].readable, found[word].left_out) for word in WORDS}
    # the second vehicle and the last car of the long line are beyond 12 tokens
    assert counts == {"computer": (3, 0), "monitor": (6, 0), "car": (3, 1), "vehicle": (3, 1)}
    for word in WORDS:
        lines, vectors = zip(*expected[word])
        assert [one.line for one in found[word].kept] == [*lines]
        torch.testing.assert_close(context_vectors(model, found[word].kept), torch.stack(vectors))


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "no_begin"])
def test_contexts_of_a_causal_model_predict_the_word(folders: dict[str, Path], name: str) -> None:
    """They are the last output for the text before the word, as a model without the rest sees."""
    model = load_language_model(folders[name])
    found = find_occurrences(model, folders["text"], WORDS, 100, 1)
    gpt2 = GPT2LMHeadModel.from_pretrained(folders[name])
    begin = [model.tokenizer.bos_token_id] if name == "gpt2" else []
    for word in WORDS:
        lines = []
        logits = []
        without = 0
        for number, line in enumerate(LINES, start=1):
            for match in re.finditer(rf"\b{word}\b", line):  # with case, as the tokenizer
                tokens = begin + model.tokenizer(line[: match.start()].rstrip())["input_ids"]
                if not tokens:
                    without += 1
                    continue
                lines.append(number)
                logits.append(gpt2(torch.tensor([tokens])).logits[0, -1])
        assert (found[word].readable, found[word].left_out) == (len(lines), without)
        assert [one.line for one in found[word].kept] == lines
        vectors = context_vectors(model, found[word].kept)
        torch.testing.assert_close(gpt2.lm_head(vectors), torch.stack(logits))
    pieces = model.tokenizer(" vehicle car")["input_ids"]
    assert model.tokenizer.convert_ids_to_tokens(pieces) == ["Ġvehi", "cle", "Ġcar"]
    # "monitor" and "computer" begin a line
    assert [found[word].left_out for word in WORDS] == ([0] * 4 if begin else [1, 1, 0, 0])


def test_case_matters_where_it_matters_to_the_tokenizer(folders: dict[str, Path]) -> None:
    found = {
        (name, word): find_occurrences(
            load_language_model(folders[name]), folders["text"], [word], 100, 1
        )[word].readable
        for name in ("bert", "cased")
        for word in ("computer", "Computer")
        if (name, word) != ("cased", "Computer")
    }
    assert found == {("bert", "computer"): 3, ("bert", "Computer"): 3, ("cased", "computer"): 2}
    with pytest.raises(UserError, match=r"'Computer': the tokenizer of .* does not know it"):
        find_occurrences(
            load_language_model(folders["cased"]), folders["text"], ["Computer"], 100, 1
        )


@pytest.mark.parametrize(
    ("word", "text", "times"),
    [
        ("कम", "कम कमी कम", 2),  # a vowel sign goes on with the word
        ("cafe", "cafe cafe\u0301", 1),
        ("银行", "我去银行取钱", 1),  # without spaces
        ("ไป", "เราไปบ้าน ไป่", 1),
        ("car", "car scar cars car.", 2),
    ],
)
def test_whole_words_of_other_scripts(word: str, text: str, times: int) -> None:
    def tokenizer(text: str, **_: object) -> dict[str, list[int]]:
        return {"input_ids": [*text.encode()]}

    tokenizer.unk_token_id = -1  # type: ignore[attr-defined]
    model = LanguageModel(Path("model"), None, tokenizer, causal=False, longest=9)
    assert len(_pattern(model, word).findall(text)) == times


def test_a_sample_is_uniform_and_depends_on_the_seed_alone(folders: dict[str, Path]) -> None:
    model = load_language_model(folders["bert"])

    def lines(seed: int, words: list[str]) -> list[tuple[int, int]]:
        found = find_occurrences(model, folders["text"], words, 2, seed)["monitor"]
        assert (len(found.kept), found.readable) == (2, 6)
        return [(one.line, one.states[0]) for one in found.kept]

    assert lines(3, ["monitor"]) == lines(3, ["car", "monitor", "computer"])
    draws = [lines(seed, ["monitor"]) for seed in range(300)]
    times = Counter(place for draw in draws for place in draw)
    assert len(times) == 6
    assert all(70 <= count <= 130 for count in times.values())  # 100 ± 8


def test_no_line_is_longer_than_the_model(tmp_path: Path) -> None:
    """RoBERTa needs two more positions than it has tokens; a tokenizer may not say its maximum."""
    config = RobertaConfig(
        vocab_size=len(tiny.PIECES),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=14,
        pad_token_id=1,
    )
    folder = tiny.save(tmp_path / "roberta", RobertaForMaskedLM(config), tiny.wordpiece(True))
    (tmp_path / "text").write_text(f"monitor {'a ' * 50}\ncomputer a a monitor\n")
    model = load_language_model(folder)
    assert model.longest == 12
    kept = find_occurrences(model, tmp_path / "text", ["monitor"], 9, 1)["monitor"].kept
    vectors = context_vectors(model, kept)
    assert [len(one.tokens) for one in kept] == [12, 6]
    for one, vector in zip(kept, vectors):
        alone = RobertaForMaskedLM.from_pretrained(folder).roberta(torch.tensor([one.tokens]))
        torch.testing.assert_close(vector, alone.last_hidden_state[0, one.states[0]].detach())


def test_models_without_a_head_and_decoders(folders: dict[str, Path], tmp_path: Path) -> None:
    text = folders["text"]
    masked = load_language_model(folders["bert"])
    kept = find_occurrences(masked, text, ["car"], 9, 1)["car"].kept
    bert = BertModel.from_pretrained(folders["bert"])
    bert.save_pretrained(tmp_path / "bare")
    masked.tokenizer.save_pretrained(tmp_path / "bare")
    bare = load_language_model(tmp_path / "bare")
    assert not bare.causal
    torch.testing.assert_close(context_vectors(bare, kept), context_vectors(masked, kept))
    for is_decoder in (True, False):
        decoder = BertLMHeadModel(tiny.bert_config(is_decoder=is_decoder))
        folder = tiny.save(tmp_path / f"decoder_{is_decoder}", decoder, masked.tokenizer)
        if is_decoder:
            assert load_language_model(folder).causal
        else:
            with pytest.raises(UserError, match="reads the words that follow"):
                load_language_model(folder)


def drawn(
    monkeypatch: Patch, capsys: Capsys, tmp_path: Path, *given: object
) -> tuple[Any, str, Any, list[dict[str, str]]]:
    """Figure, printed text, JSON and CSV of ``plot contexts``."""
    figures: list[Any] = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, _: figures.append(figure))
    files = "--json", tmp_path / "a.json", "--csv", tmp_path / "a.csv", "-o", tmp_path / "a.png"
    printed = kerbs(capsys, "plot", "contexts", *given, *files)
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    figures[0].canvas.draw()
    return figures[0], printed, json.loads((tmp_path / "a.json").read_text()), rows


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_the_figure_has_principal_components_and_a_colour_a_word(
    folders: dict[str, Path], name: str, tmp_path: Path, monkeypatch: Patch, capsys: Capsys
) -> None:
    given = folders[name], "--text", folders["text"], *FIGURE_1
    figure, printed, report, rows = drawn(monkeypatch, capsys, tmp_path, *given)
    model = load_language_model(folders[name])
    found = find_occurrences(model, folders["text"], WORDS, 300, 1)
    colors = []
    for number, (axes, words) in enumerate(
        zip(figure.axes, [["computer"], ["monitor"], ["car", "vehicle"]], strict=True), start=1
    ):
        vectors = [context_vectors(model, found[word].kept).double().numpy() for word in words]
        points = np.concatenate(vectors)
        centred = points - points.mean(0)
        _, singular, directions = np.linalg.svd(centred, full_matrices=False)
        table = np.array([[r["x"], r["y"]] for r in rows if r["panel"] == str(number)], float)
        shares = np.pad(singular**2 / (singular**2).sum(), (0, 1))[:2]
        for column, (direction, share) in enumerate(zip(directions, shares)):
            expected = centred @ direction
            sign = np.sign(expected @ table[:, column]) or 1.0
            np.testing.assert_allclose(table[:, column], sign * expected, atol=1e-5)
            assert f"({share:.0%}" in report["axes"][number - 1][column]
        assert [axes.get_xlabel(), axes.get_ylabel()] == report["axes"][number - 1]
        assert axes.get_title() == f"Contexts of {', '.join(words)}"
        legend = [text.get_text() for text in axes.get_legend().get_texts()]
        assert legend == [f"{word} ({len(found[word].kept)})" for word in words]
        for word, marks in zip(words, axes.collections, strict=True):
            ours = [
                [r["x"], r["y"]] for r in rows if (r["panel"], r["word"]) == (str(number), word)
            ]
            np.testing.assert_allclose(marks.get_offsets(), np.array(ours, float), atol=1e-9)
            colors.append(to_hex(marks.get_edgecolors()[0]))
    assert len({*colors}) == 4
    for row, measured in zip(WORDS, report["words"], strict=True):
        contexts = context_vectors(model, found[row].kept).double()
        distances = (contexts - contexts.mean(0)).square().sum(1)
        variance = distances.mean() / contexts.square().sum(1).mean()
        assert measured["variance"] == pytest.approx(float(variance), rel=1e-5)
        kept = measured["contexts"]
        readable = measured["readable"]
        assert re.search(rf"^{row} +{kept} of {readable} +{variance:.1%}$", printed, re.M)
    lines = [int(row["line"]) for row in rows if row["word"] == "vehicle"]
    assert lines == [one.line for one in found["vehicle"].kept]
    left_out = sum(found[word].left_out for word in WORDS)
    assert (f"\n{left_out} occurrences have no context" in printed) == (name == "bert")


def test_several_words_share_a_panel_and_seeds_differ(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: Patch, capsys: Capsys
) -> None:
    given = folders["bert"], "--text", folders["text"], "--word", *WORDS, "--most", 2
    figure, printed, _, rows = drawn(monkeypatch, capsys, tmp_path, *given)
    assert len(figure.axes) == 1
    assert Counter(row["word"] for row in rows) == dict.fromkeys(WORDS, 2)
    assert re.search(r"^monitor +2 of 6 ", printed, re.M)
    assert drawn(monkeypatch, capsys, tmp_path, *given, "--seed", 1)[3] == rows
    assert drawn(monkeypatch, capsys, tmp_path, *given, "--seed", 2)[3] != rows


class Payload:
    """A pickle that creates a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


@pytest.fixture(scope="module")
def broken(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders that cannot be used, by name; ``ran`` is there if code of one of them ran."""
    folder = tmp_path_factory.mktemp("broken")
    names = (
        "adapter",
        "code",
        "damaged",
        "pickle",
        "payload",
        "missing",
        "json",
        "no_tokenizer",
        "larger",
    )
    for name in names:
        shutil.copytree(folders["bert"], folder / name)
    (folder / "adapter" / "adapter_config.json").write_text("{}")
    config = json.loads((folder / "code" / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModel": "own.Own"}}
    (folder / "code" / "config.json").write_text(json.dumps(config))
    code = f"open({str(folder / 'ran')!r}, 'w')\nclass Own: pass\n"
    (folder / "code" / "own.py").write_text(code)
    weights = folder / "damaged" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    for name in ("pickle", "payload"):
        (folder / name / "model.safetensors").unlink()
    tensors = load_file(folders["bert"] / "model.safetensors")
    torch.save(tensors, folder / "pickle" / "pytorch_model.bin")
    with (folder / "payload" / "pytorch_model.bin").open("wb") as stream:
        pickle.dump(Payload(folder / "ran"), stream)
    tensors = load_file(folder / "missing" / "model.safetensors")
    del tensors["bert.encoder.layer.1.output.dense.weight"]
    save_file(tensors, folder / "missing" / "model.safetensors", metadata={"format": "pt"})
    (folder / "json" / "config.json").write_text("{")
    for file in (folder / "no_tokenizer").glob("tokenizer*"):
        file.unlink()
    larger = tiny.wordpiece(True)
    larger.add_tokens(["vehicle"])
    larger.save_pretrained(folder / "larger")
    for name, kind in (("t5", T5Config), ("vit", ViTConfig)):
        kind().save_pretrained(folder / name)
    (folder / "empty").mkdir()
    (folder / "few").write_text("the car\na monitor and a monitor\n")
    (folder / "latin").write_bytes(b"a car\na caf\xe9\n")
    return folder


MISUSES = [
    ("{broken}/empty --text {text} --word car", "config.json is missing"),
    ("{broken}/adapter --text {text} --word car", "adapter_config.json"),
    ("{broken}/code --text {text} --word car", "code: the model cannot be loaded"),
    ("{broken}/damaged --text {text} --word car", "damaged: the model cannot be loaded"),
    ("{broken}/payload --text {text} --word car", "payload: the model cannot be loaded"),
    ("{broken}/pickle --text {text} --word car", "pickle: the model cannot be loaded"),
    (
        "{broken}/missing --text {text} --word car",
        "1 weights are missing, such as bert.encoder.layer.1.output.dense.weight",
    ),
    ("{broken}/json --text {text} --word car", "json: the model cannot be loaded"),
    ("{broken}/no_tokenizer --text {text} --word car", "no_tokenizer"),
    ("{broken}/larger --text {text} --word vehicle", "the tokenizer has more entries"),
    ("{broken}/t5 --text {text} --word car", "t5 has an encoder-decoder model (t5)"),
    ("{broken}/vit --text {text} --word car", "vit has no language model (vit)"),
    ("{bert} --word car", "--text is missing"),
    ("{bert} --text {broken}/absent --word car", "--text: {broken}/absent: no such file"),
    ("{bert} --text {broken} --word car", "cannot be read"),
    ("{bert} --text {broken}/latin --word car", "latin, line 2: not valid UTF-8"),
    ("{bert} --text {broken}/few --word car monitor vehicle", "car (1), vehicle (0), but"),
    ("{bert} --text {text} --word car xyz", "--word: 'xyz': the tokenizer of {bert} does not"),
    ("{bert} --text {text} --word car --projection discriminants", "--projection discriminants"),
    ("{bert} --text {text} --word a b c d e f g h i", "--word: 9 words, but"),
    ("{bert} --text {text} --word car --data x --split y", "--data, --split goes with a file of"),
    ("{text} --text {text} --word car --seed 2", "--text, --seed goes with a folder in the Hug"),
    ("{text} --word car", "--data is missing"),
    ("{text} --data x --word car --word the", "--word: car, the: the contexts of a trained model"),
]


@pytest.mark.parametrize(("given", "said"), MISUSES)
def test_wrong_input(
    folders: dict[str, Path], broken: Path, given: str, said: str, tmp_path: Path, capsys: Capsys
) -> None:
    paths = {**folders, "broken": broken}
    output = "-o", tmp_path / "a.png", "--json", tmp_path / "a.json"
    told = kerbs(capsys, "plot", "contexts", *given.format(**paths).split(), *output, status=2)
    assert said.format(**paths) in told
    assert told.startswith("fairseq-kerbs: error: ")
    assert told.count("\n") == 1
    assert not list(tmp_path.iterdir())
    assert not (broken / "ran").exists()


def test_the_extra_is_named(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: Patch, capsys: Capsys
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    given = folders["bert"], "--text", folders["text"], "--word", "car", "-o", tmp_path / "a.png"
    told = kerbs(capsys, "plot", "contexts", *given, status=2)
    assert "transformers is not installed; run pip install 'fairseq_kerbs[analysis,hf]'" in told
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_fairseq_is_not_needed(folders: dict[str, Path], tmp_path: Path) -> None:
    code = "import sys; from fairseq_kerbs.cli import main; assert not main(sys.argv[1:]); "
    code += "assert 'fairseq' not in sys.modules"
    given = folders["gpt2"], "--text", folders["text"], "--word", "car", "-o", tmp_path / "a.png"
    command = sys.executable, "-c", code, "plot", "contexts", *map(str, given)
    printed = run_program(*command, cwd=tmp_path)
    assert printed.endswith("wrote {}: contexts\n".format(tmp_path / "a.png"))
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")

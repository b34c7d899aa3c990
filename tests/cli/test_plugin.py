"""``fairseq-kerbs architectures`` and ``user-dir``."""

from fairseq_kerbs.models import PRESETS
from fairseq_kerbs.utils.processes import PLUGIN_FOLDER
from tests.helpers.cli import Capsys, kerbs
from tests.helpers.commands import run


def test_architectures_are_the_registered_ones_with_their_sizes() -> None:
    sizes, common, varying = run("fairseq-kerbs", "architectures").split("\n\n")
    rows = {line.split()[0]: line.split(maxsplit=7)[1:] for line in sizes.splitlines()[1:]}
    assert list(rows) == [name for presets in PRESETS.values() for name in presets]
    paper = ["288", "-", "507", "5", "2", "0.1", "Transformer, sequence to sequence (Section 5.1)"]
    assert rows["transformer_kerbs_iwslt"] == paper
    assert rows["gru_kerbs_dialog"][:6] == ["512", "1024", "-", "1", "-", "0.1"]
    published = (
        "--output-layer kerbs --kernel kerbs --total-senses 3.0 --max-senses 4 "
        "--sense-allocation random --reallocation paper --reallocation-interval 200"
    )
    assert common.startswith(f"The output layer of all: {published} ")
    assert "--composition posterior --composition-passes 1 --sense-bias False" in common
    head, *others = [line.split() for line in varying.splitlines()]
    assert head == ["--arch", "--attention", "--init-scale", "--input-embedding"]
    scales = {row[0]: row[head.index("--init-scale")] for row in others}
    assert list(scales) == list(rows)
    assert scales["transformer_kerbs"] == "1.0"


def test_the_folder_of_the_plugin(capsys: Capsys) -> None:
    assert kerbs(capsys, "user-dir") == f"{PLUGIN_FOLDER}\n"
    assert (PLUGIN_FOLDER / "criterions.py").is_file()

"""What fairseq makes of a missing architecture, and of flags of precision where there is no TPU."""

from __future__ import annotations

import pytest
from fairseq import options

import fairseq_kerbs.models  # noqa: F401  (makes the changes)

TPU = {"": False, "--bf16": False, "--memory-efficient-bf16": False, "--tpu": True}
TPU["--bf16 --tpu"] = True


@pytest.mark.parametrize("flags", TPU)
@pytest.mark.parametrize("given", [True, False])
def test_a_tpu_is_used_where_it_was_asked_for(
    flags: str, given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["DATA", "--arch", "lstm", *flags.split()]
    monkeypatch.setattr("sys.argv", ["fairseq-train", *([] if given else arguments)])
    parser = options.get_training_parser()
    args = options.parse_args_and_arch(parser, arguments if given else None)
    assert args.tpu == TPU[flags]
    assert args.bf16 == ("bf16" in flags)


def test_a_missing_architecture_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        options.parse_args_and_arch(options.get_training_parser(), ["DATA"])
    assert ended.value.code == 2
    assert "--arch is missing" in capsys.readouterr().err.splitlines()[-1]

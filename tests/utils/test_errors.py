"""One sentence for an error of the system."""

from pathlib import Path

import pytest

from fairseq_kerbs.utils.errors import reason_of, sentence_of
from fairseq_kerbs.utils.files import atomic_write


def test_an_error_of_the_system_names_the_file(tmp_path: Path) -> None:
    for named, below in ((tmp_path, ""), (Path(__file__), "below")):
        with pytest.raises(OSError, match=str(named)) as error, atomic_write(named / below):
            pass
        assert str(sentence_of(error.value)).startswith(f"{named} cannot be used")
    with pytest.raises(OSError, match="other"), atomic_write(tmp_path / "text"):
        raise PermissionError(13, "refused", "other")  # which the caller reads
    assert not any(map(sentence_of, (FileNotFoundError(2, "nothing", "there"), OSError("other"))))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Error(s) in loading state_dict for M:\n\tMissing key(s)", "Missing key(s)"),
        ('Incorrect format: "word\n"', 'Incorrect format: "word'),
        ("one line", "one line"),
        ("", "ValueError"),
    ],
)
def test_the_line_that_says_most(text: str, reason: str) -> None:
    assert reason_of(ValueError(text)) == reason

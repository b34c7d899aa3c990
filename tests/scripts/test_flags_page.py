"""The page of all flags is the one that the code gives."""

from scripts import flags_page


def test_the_page_is_up_to_date() -> None:
    assert flags_page.PAGE.read_text(encoding="utf-8") == flags_page.page()


def test_a_flag_has_its_default_meaning_and_names() -> None:
    rows = {line.split(" | ")[0].strip("| `"): line for line in flags_page.page().splitlines()}
    assert "| `3` | number of senses, as a multiple of" in rows["--total-senses"]
    assert "`kerbs`, `kerbs_released`, `lin`, `log`" in rows["--kernel"]
    assert "| `off` |" in rows["--sense-bias"]
    assert rows["--reallocation-at"].endswith("0.2 with --reallocation clusters] |")
    assert "| at 0.2 of `--max-update` | `random` | contexts, biases |" in rows["clusters"]
    assert "| 288 |  | 507 | 5 | 2 | 0.1 | 1 |" in rows["transformer_kerbs_iwslt"]

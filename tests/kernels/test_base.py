"""What a kernel says of itself, and how flags, checkpoints and guards follow from that."""

import argparse
from pathlib import Path

import pytest
import torch

from fairseq_kerbs.kernels import (
    KERNELS,
    InnerProductKernel,
    Kernel,
    KernelOption,
    build_kernel,
    kerbs_kernel,
    kernel_logits,
    kernel_options,
    register,
    safe_inverse,
)
from fairseq_kerbs.models.config import KerbsConfig, _kernel_option_flag, kernels_from_flags
from fairseq_kerbs.output_layers import KerbsOutputLayer
from fairseq_kerbs.training.guards import SCORING
from tests.helpers.commands import run
from tests.helpers.gao_reference import NINE

PAPERS = ["kerbs", "kerbs_released", *NINE]
"""The kernels of the papers; others may be registered beside them."""


def test_kernels_are_in_the_order_of_the_papers() -> None:
    assert [name for name in KERNELS if name in PAPERS] == PAPERS


def test_two_kernels_cannot_have_one_name() -> None:
    class Another(InnerProductKernel):
        pass

    with pytest.raises(ValueError, match="two kernels named 'lin'"):
        register(Another)
    assert KERNELS["lin"] is InnerProductKernel


def test_options_are_described() -> None:
    assert KERNELS["pol"].options["power"] == KernelOption("power", 3, "p")
    assert KERNELS["pol"].options["power"].type is int
    assert KERNELS["log"].options["power"].type is float
    assert KernelOption("scale_factor", 2.0, "f").flag == "--kernel-scale-factor"
    of_power = {name: KERNELS[name].options["power"] for name in ("log", "pow", "pol")}
    assert of_power.items() <= kernel_options()["power"].items()
    assert [name for name in kernel_options()["power"] if name in of_power] == [*of_power]
    assert not KERNELS["ssg"].options  # the size of its vectors is no option
    text = "p of the kernels log, pow and pol [log and pow 2, pol 3]"
    assert _kernel_option_flag(of_power).metadata["help"] == text
    of_alpha = {"pol": KERNELS["pol"].options["alpha"]}
    assert _kernel_option_flag(of_alpha).metadata["help"] == "alpha of the kernel pol [1/12]"
    flags = KerbsConfig.__dataclass_fields__
    for name, described in kernel_options().items():
        expected = _kernel_option_flag(described).metadata
        assert flags[f"kernel_{name}"].metadata == expected


def test_flags_reach_the_kernels_that_read_them_and_that_learn_nothing() -> None:
    read = {"power": 5.0, "alpha": 0.2, "offset": -1.0, "gamma": 0.3, "a": 2.0, "b": 3.0}
    flags = argparse.Namespace(**{f"kernel_{key}": value for key, value in read.items()})
    flags.output_layer = "mixture"
    flags.mixture_kernels = ", ".join(NINE)
    for name, kernel in zip(NINE, kernels_from_flags(flags), strict=True):
        assert kernel.name == name
        options = KERNELS[name].options
        assert {key: getattr(kernel, key) for key in options} == {key: read[key] for key in options}
        layer = KerbsOutputLayer(10, 31, 31, max_senses=1, kernel=kernel)
        assert [value.shape for value in layer.parameters()] == [(31, 10)]
    prefix = "kernel_"
    fields = {key for key in KerbsConfig.__dataclass_fields__ if key.startswith(prefix)}
    every = {key.removeprefix(prefix) for key in fields}
    assert every == set(kernel_options())
    assert every >= set(read)
    assert fields == {name for name in SCORING if name.startswith(prefix)}
    assert {option for name in NINE for option in KERNELS[name].options} == set(read)
    alone = argparse.Namespace(output_layer="kerbs", kernel="pow")
    assert kernels_from_flags(alone) == [build_kernel("pow")]


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_what_a_kernel_says_of_the_inner_product_and_of_biases_is_true(name: str) -> None:
    kernel = build_kernel(name).bind(6)
    generator = torch.Generator().manual_seed(2)
    h = torch.randn(5, 6, generator=generator, dtype=torch.float64)
    w = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    theta = torch.zeros(4, dtype=torch.float64)
    logits = kernel_logits(h, w, theta, kernel)
    assert torch.allclose(logits, h @ w.t()) == kernel.inner_product_at_zero
    h[:, -1] = 1.0
    without = w.clone()
    without[:, -1] = 0.0
    added = kernel_logits(h, w, theta, kernel) - kernel_logits(h, without, theta, kernel)
    assert torch.allclose(added, w[:, -1].expand(5, 4)) == kernel.constant_is_bias


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_a_kernel_is_folded_to_its_own_logits_or_not_at_all(name: str) -> None:
    kernel: Kernel = build_kernel(name).bind(6)
    h = torch.randn(5, 6, dtype=torch.float64)
    w = torch.randn(4, 6, dtype=torch.float64)
    theta = torch.tensor([0.0, 1.0, -1.0, 3.0], dtype=torch.float64)
    folded = kernel.fold(w, w.norm(dim=1), kernel.prepare(theta))
    if name in PAPERS:
        assert (folded is not None) == (name == "kerbs")
    if folded is not None:
        norm = h.norm(dim=1, keepdim=True)
        logits = norm * folded.factors * torch.expm1(h / norm @ folded.rows.t())
        torch.testing.assert_close(logits, kernel_logits(h, w, theta, kernel))
    if name == "kerbs":
        torch.testing.assert_close(logits, kerbs_kernel(h, w, theta))


@pytest.mark.slow
def test_a_new_kernel_with_an_option_is_one_class(data: Path, tmp_path: Path) -> None:
    """Its flag appears, reaches the checkpoint, and a resume with another value is refused."""

    def train(*flags: str, status: int = 0) -> str:
        model = "--arch lstm_kerbs --hidden-size 8 --embed-dim 8"
        training = "--criterion kerbs_cross_entropy --optimizer adam --lr 0.01 --max-tokens 400"
        rest = f"--cpu --disable-validation --save-dir {tmp_path / 'model'}"
        fixed = f"{model} {training} {rest}".split()
        prepare = {"tests.helpers.another_kernel:add": ""}
        return run("fairseq-train", data, *fixed, *flags, status=status, prepare=prepare)

    train("--kernel", "scaled", "--kernel-scale-factor", "3", "--max-update", "1")
    state = torch.load(tmp_path / "model" / "checkpoint_last.pt", weights_only=False)
    assert state["cfg"]["model"].kernel_scale_factor == 3.0
    other = train("--kernel", "scaled", "--kernel-scale-factor", "4", "--max-update", "2", status=1)
    assert "was trained with --kernel-scale-factor 3.0, not 4.0" in other
    unread = train("--kernel", "lin", "--kernel-scale-factor", "4", "--max-update", "2", status=1)
    assert "--kernel-scale-factor is for the kernel scaled, and is not read" in unread


def test_a_norm_without_a_finite_inverse_counts_as_zero() -> None:
    for dtype in (torch.float32, torch.float64):
        tiny = torch.finfo(dtype).tiny
        norms = torch.tensor([0.0, tiny / 4, tiny, 1.0, 8.0], dtype=dtype)
        assert safe_inverse(norms).tolist() == [0.0, 0.0, 1.0 / tiny, 1.0, 0.125]

"""Package description of fairseq_kerbs; scripts/install.sh installs it with a working fairseq."""

import re
from pathlib import Path

from setuptools import Extension, find_packages, setup

# Fused passes of the likelihood on a CPU: plain C, called through ctypes, so that nothing of torch
# is needed to build it. Without a compiler the package still installs, and compiles them at first
# use where there is one then (fairseq_kerbs/likelihood/backends/compiler.py).
CSRC = Path("fairseq_kerbs/likelihood/backends/csrc")
PASSES = Extension(
    "fairseq_kerbs.likelihood.backends._passes",
    sources=[str(CSRC / "passes.c")],
    depends=[str(CSRC / "passes_body.h"), str(CSRC / "flags")],
    extra_compile_args=(Path(__file__).parent / CSRC / "flags").read_text().split(),
    optional=True,
)

PACKAGE = Path(__file__).parent / "fairseq_kerbs"
VERSION = re.findall('^__version__ = "(.+)"$', (PACKAGE / "__init__.py").read_text(), re.M)[0]

setup(
    name="fairseq_kerbs",
    version=VERSION,
    description="Kernelized Bayesian Softmax for fairseq: every word may have several senses",
    long_description=Path("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="The fairseq_kerbs authors",
    license="MIT",
    license_files=["LICENSE"],
    python_requires=">=3.11,<3.14",
    packages=[
        *find_packages(include=["fairseq_kerbs", "fairseq_kerbs.*"]),
        "fairseq_kerbs.configs",
    ],
    package_dir={"fairseq_kerbs.configs": "configs"},  # an installed package has them inside
    package_data={
        "fairseq_kerbs.configs": ["*.yaml", "*/*.yaml"],
        "fairseq_kerbs": [
            "analysis/*.html",
            "corpora/*.yaml",
            "likelihood/backends/csrc/*",
            "py.typed",
        ],
    },
    ext_modules=[PASSES],
    install_requires=[
        # scripts/fairseq_wheel builds 0.12.2+kerbs3, which satisfies this.
        "fairseq==0.12.2",
        "Jinja2",
        "matplotlib>=3.8",
        "numpy",
        "plotly>=6",
        "PyYAML",
        "sacrebleu>=2.4",
        # Its rules for prefixes and apostrophes change with the version, and BLEU with them.
        "sacremoses==0.1.1",
        "scikit-learn>=1.4",
        "scipy",
        "shtab>=1.7",
        "snowballstemmer",
        "subword-nmt>=0.3.8",
        "tabulate",
        # What --tensorboard-logdir of fairseq writes with, through torch.utils.tensorboard.
        "tensorboard",
        "torch",
        "tqdm",
    ],
    extras_require={
        "dev": [
            "hypothesis",
            "import-linter",
            "mpmath",
            "mypy",
            "pytest",
            "pytest-timeout",
            "pytest-cov",
            "pytest-xdist",
            "ruff",
            "setuptools",
            # Its interpreter runs the CUDA kernels on a CPU; CUDA builds of torch bring it along.
            "triton>=3.7,<4; platform_system == 'Linux' and platform_machine == 'x86_64'",
            "types-PyYAML",
        ],
    },
    entry_points={"console_scripts": ["fairseq-kerbs = fairseq_kerbs.cli:main"]},
    zip_safe=False,
)

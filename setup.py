"""Package description of fairseq_kerbs; scripts/install.sh installs it with a working fairseq."""

import runpy
from pathlib import Path

from setuptools import find_packages, setup

ABOUT = runpy.run_path(str(Path(__file__).parent / "fairseq_kerbs" / "__init__.py"))
LOWEST = ABOUT["LOWEST"]

setup(
    name="fairseq_kerbs",
    version=ABOUT["__version__"],
    description="Kernelized Bayesian Softmax for fairseq: every word may have several senses",
    long_description=Path("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="The fairseq_kerbs authors",
    license="MIT",
    license_files=["LICENSE"],
    python_requires=f">={LOWEST['Python']}",
    packages=[
        *find_packages(include=["fairseq_kerbs", "fairseq_kerbs.*"]),
        "fairseq_kerbs.configs",
    ],
    package_dir={"fairseq_kerbs.configs": "configs"},  # an installed package has them inside
    package_data={
        "fairseq_kerbs.configs": ["*.yaml", "*/*.yaml"],
        "fairseq_kerbs": ["analysis/*.html", "data/*.yaml", "py.typed"],
    },
    # enough for the output layers in a PyTorch model of one's own
    install_requires=["numpy", f"torch>={LOWEST['torch']}"],
    extras_require={
        # training, preparing, generating and the command line
        "fairseq": [
            # The command line; 8.1 is the last for Python 3.9, and 8.5 is tested beside it.
            "click>=8.1",
            # scripts/fairseq_wheel builds 0.12.2+kerbs6, which satisfies this.
            "fairseq==0.12.2",
            "pooch>=1.8",
            "PyYAML",
            "sacrebleu>=2.4",
            # Its rules for prefixes and apostrophes change with the version, and BLEU with them.
            "sacremoses==0.1.1",
            "subword-nmt>=0.3.8",
            "tabulate",
            # What --tensorboard-logdir of fairseq writes with, through torch.utils.tensorboard.
            "tensorboard",
            "tqdm",
        ],
        # what the senses learned, and scores by people; beside "fairseq"
        "analysis": [
            "Jinja2",
            "matplotlib>=3.8",
            "pandas>=2.2",
            "regex",
            "scikit-learn>=1.4",
            "scipy",
            "snowballstemmer",
            "tabulate",
            "wcwidth",  # tabulate aligns Chinese and Japanese by it
        ],
        # contexts of models of Hugging Face, such as BERT; beside "analysis"
        "hf": [
            # 4.57 is the last one for Python 3.9; both it and 5.24 run with torch 2.13.
            "transformers>=4.57,<6",
        ],
        # the papers' tables; beside "fairseq"
        "tables": [
            "jsonschema",
            "pandas>=2.2",
            "snakemake>=9,<10; python_version >= '3.11'",
            # sends trainings to a cluster: configs/snakemake/slurm
            "snakemake-executor-plugin-cluster-generic>=1.0.9; python_version >= '3.11'",
            "tabulate",
        ],
        "dev": [
            # a training by Hugging Face's Trainer, which a test runs
            "accelerate",
            "build",
            "hypothesis",
            "import-linter",
            "mpmath",
            "mypy",
            "pytest",
            "pytest-timeout",
            "pytest-cov",
            "pytest-xdist>=3.7",
            "ruff",
            "setuptools",
            "transformers>=4.57,<6",
            "types-PyYAML",
        ],
    },
    entry_points={"console_scripts": ["fairseq-kerbs = fairseq_kerbs.cli:main"]},
    zip_safe=False,
)

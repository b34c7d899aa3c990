"""Build description of the edited fairseq: copied as setup.py into its unpacked source."""

from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup

ROOT = Path(__file__).resolve().parent
COMPILE_ARGS = ["-std=c++17", "-O3"]
COMMANDS = ("eval_lm", "generate", "hydra_train", "interactive", "preprocess", "score", "train",
            "validate")  # fmt: skip


def data_files() -> list[str]:
    """Return the files that fairseq reads beside its modules: its configurations and examples."""
    package = ROOT / "fairseq"
    found = [path for folder in ("config", "examples") for path in (package / folder).rglob("*")]
    return sorted(str(path.relative_to(package)) for path in found if path.is_file())


if __name__ == "__main__":
    setup(
        name="fairseq",
        version=(ROOT / "fairseq" / "version.txt").read_text().strip(),
        description="fairseq 0.12.2 with the edits that today's Python, torch and numpy need",
        url="https://github.com/facebookresearch/fairseq",
        license="MIT",
        license_files=["LICENSE"],
        python_requires=">=3.11",
        install_requires=[
            "bitarray",
            "hydra-core>=1.3.2,<1.4",
            "numpy>=1.26",
            "omegaconf>=2.3,<2.4",
            "regex",
            "sacrebleu>=1.4.12",
            "torch",
            "tqdm",
        ],
        packages=find_packages(include=["fairseq", "fairseq.*", "fairseq_cli", "fairseq_cli.*"]),
        package_data={"fairseq": [*data_files(), "version.txt"]},
        ext_modules=[
            Extension(
                "fairseq.libbleu",
                sources=[f"fairseq/clib/libbleu/{part}.cpp" for part in ("libbleu", "module")],
                extra_compile_args=COMPILE_ARGS,
            ),
            *cythonize(
                [
                    Extension(
                        f"fairseq.data.{name}",
                        sources=[f"fairseq/data/{name}.pyx"],
                        include_dirs=[numpy.get_include()],
                        language="c++",
                        extra_compile_args=COMPILE_ARGS,
                    )
                    for name in ("data_utils_fast", "token_block_utils_fast")
                ],
                quiet=True,
            ),
        ],
        entry_points={
            "console_scripts": [
                f"fairseq-{command.replace('_', '-')} = fairseq_cli.{command}:cli_main"
                for command in COMMANDS
            ]
        },
        zip_safe=False,
    )

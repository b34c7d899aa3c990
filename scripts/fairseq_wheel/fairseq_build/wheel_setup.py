"""Extensions of the edited fairseq: copied as setup.py into its unpacked source."""

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup

CPP = {"language": "c++", "extra_compile_args": ["-std=c++17", "-O3"]}
BLEU = [f"fairseq/clib/libbleu/{part}.cpp" for part in ("libbleu", "module")]
DATA = [
    Extension(
        f"fairseq.data.{name}",
        sources=[f"fairseq/data/{name}.pyx"],
        include_dirs=[numpy.get_include()],
        **CPP,
    )
    for name in ("data_utils_fast", "token_block_utils_fast")
]

if __name__ == "__main__":
    libbleu = Extension("fairseq.libbleu", sources=BLEU, **CPP)
    setup(ext_modules=[libbleu, *cythonize(DATA, quiet=True)])

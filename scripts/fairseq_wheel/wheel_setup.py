"""Extensions of the edited fairseq: copied as setup.py into its unpacked source."""

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup

if __name__ == "__main__":
    options = {"language": "c++", "extra_compile_args": ["-std=c++17", "-O3"]}
    bleu = [f"fairseq/clib/libbleu/{part}.cpp" for part in ("libbleu", "module")]
    data = [
        Extension(
            f"fairseq.data.{name}",
            [f"fairseq/data/{name}.pyx"],
            include_dirs=[numpy.get_include()],
            **options,
        )
        for name in ("data_utils_fast", "token_block_utils_fast")
    ]
    libbleu = Extension("fairseq.libbleu", bleu, **options)
    setup(ext_modules=[libbleu, *cythonize(data, quiet=True)])

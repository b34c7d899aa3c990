"""``python -m fairseq_kerbs.cli``, which is ``fairseq-kerbs``."""

import sys

from fairseq_kerbs.cli.program import main

sys.exit(main())

"""The package of output layers: what it needs to be imported and used."""

import subprocess
import sys

SCRIPT = '''
import signal
import sys

if hasattr(signal, "SIGHUP"):
    del signal.SIGHUP  # as on Windows
for name in (
    "click", "hydra", "matplotlib", "omegaconf", "pandas", "resource", "sacrebleu", "scipy",
    "sklearn", "tabulate", "tqdm", "transformers", "yaml",
):
    sys.modules[name] = None  # its import ends with a ModuleNotFoundError


class WithoutFairseq:
    """The package looks for fairseq in sys.modules, so its import is refused in another way."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in ("fairseq", "fairseq_cli"):
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, WithoutFairseq)

import torch

from fairseq_kerbs.output_layers import (
    KerbsOutputLayer,
    MixtureOutputLayer,
    SoftmaxOutputLayer,
)
from fairseq_kerbs.reallocation import POLICIES, reset_moments

torch.manual_seed(0)
h = torch.randn(400, 7)
h[:, 6] = 1.0
h[:200, 0] += 9.0
words = torch.randint(4, 8, (400,))
for layer in (
    SoftmaxOutputLayer(7, 8),
    MixtureOutputLayer(7, 8, ["lin", "kerbs"]),
    *(KerbsOutputLayer(7, 8, 16, biased=True, policy=name) for name in POLICIES),
):
    optimizer = torch.optim.Adam(layer.parameters())
    if hasattr(layer, "inventory"):
        layer.start_sampling(special=4)
    layer.nll(h, words).backward()
    optimizer.step()
    if hasattr(layer, "inventory"):
        layer.update_statistics(1e-3)
        moves = layer.reallocate(layer.policy)
        reset_moments(optimizer, layer.sense_parameters(), moves.senses)
        print(layer.policy.name, len(moves) > 0)
    with torch.no_grad():
        assert layer.eval().log_probs(h).isfinite().all()
ours = {name for name in sys.modules if name.startswith("fairseq_kerbs.utils.")}
print(*sorted(ours))
'''


def test_layers_need_torch_and_numpy_alone() -> None:
    """On any system: no signal of Unix, no fairseq, no progress bar. Clusters are placed, too."""
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *policies, ours = done.stdout.splitlines()
    assert policies == ["paper True", "released True", "clusters True"]
    assert "processes" not in ours

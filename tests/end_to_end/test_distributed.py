"""A layer in torch's own distributed tools: sharded training, and checkpoints."""

import copy
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.multiprocessing.spawn import spawn

from fairseq_kerbs import KerbsOutputLayer, ReallocationSettings
from tests.helpers.output_layers import DIM, Model

fsdp = pytest.importorskip("torch.distributed.fsdp", reason="this torch has no FSDP2")


def train_sharded(rank: int, store: str) -> None:
    """Three updates by two processes, and by one that sees the batches of both."""
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(0)
    net = Model(KerbsOutputLayer(DIM, 50, 110), reduction="mean")
    twin = copy.deepcopy(net)
    mesh = init_device_mesh("cpu", (2,))
    fsdp.fully_shard(net.out, mesh=mesh)
    for method in ("nll", "log_probs"):
        fsdp.register_fsdp_forward_method(net.out, method)
    fsdp.fully_shard(net, mesh=mesh)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (net, twin)]
    for _ in range(3):
        h = torch.randn(20, DIM)
        target = torch.randint(0, 50, (20,))
        for optimizer in optimizers:
            optimizer.zero_grad()
        net(h[rank::2], target[rank::2]).backward()
        (sum(twin(h[r::2], target[r::2]) for r in range(2)) / 2).backward()
        for optimizer in optimizers:
            optimizer.step()
    for ours, right in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.full_tensor(), right)  # type: ignore[attr-defined]
    net.eval()
    twin.eval()
    h = torch.randn(5, DIM)
    for _ in range(3):
        # prepared scores follow weights, which are gathered before each use
        with torch.no_grad():
            for parameter in (*net.parameters(), *twin.parameters()):
                parameter.mul_(1.5)
            torch.testing.assert_close(net(h), twin(h))
    dist.all_reduce(net.out.inventory.pending)
    torch.testing.assert_close(net.out.inventory.pending, twin.out.inventory.pending)
    with pytest.raises(ValueError, match="fully_shard"):
        net.out.reallocate("paper")
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(fsdp, "fully_shard"), reason="this torch has no FSDP2")
def test_sharded_training_equals_training_in_one_process(tmp_path: Path) -> None:
    spawn(train_sharded, (str(tmp_path / "store"),), nprocs=2)


def test_a_distributed_checkpoint_carries_senses_that_have_moved(tmp_path: Path) -> None:
    layer = KerbsOutputLayer(8, 12, 20)
    fresh = KerbsOutputLayer(8, 12, 20)
    layer.nll(torch.randn(40, 8), torch.randint(0, 12, (40,)))
    layer.update_statistics(decay=1e-4)
    assert len(layer.reallocate("paper", ReallocationSettings(log_prob_threshold=-1.0))) > 0
    save(layer.state_dict(), checkpoint_id=tmp_path / "model")
    state = fresh.state_dict()
    load(state, checkpoint_id=tmp_path / "model")
    fresh.load_state_dict(state)
    assert torch.equal(fresh.word_of_sense, layer.word_of_sense)
    h = torch.randn(5, 8)
    assert torch.equal(fresh.log_probs(h), layer.log_probs(h))

"""Architectures, registered with fairseq on import."""

from fairseq_kerbs.models.ema import keep_inventories_out_of_averages
from fairseq_kerbs.models.recurrent_kerbs import GruKerbsModel, LstmKerbsModel
from fairseq_kerbs.models.transformer_kerbs import TransformerKerbsModel

__all__ = ["GruKerbsModel", "LstmKerbsModel", "TransformerKerbsModel"]

keep_inventories_out_of_averages()

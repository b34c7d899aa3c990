"""Architectures and a flag of fairseq-generate, registered with fairseq on import."""

from fairseq_kerbs.fairseq_patches.checkpoint_files import keep_files_whole
from fairseq_kerbs.fairseq_patches.ema import keep_inventories_out_of_averages
from fairseq_kerbs.fairseq_patches.printed_senses import register as register_printed_senses
from fairseq_kerbs.fairseq_patches.trust import read_literals_only
from fairseq_kerbs.models.bilstm_lm import BilstmLanguageModel
from fairseq_kerbs.models.fairseq_lstm import StockLstmLanguageModel, StockLstmModel
from fairseq_kerbs.models.recurrent import GruKerbsModel, LstmKerbsModel
from fairseq_kerbs.models.recurrent_lm import GruLanguageModel, LstmLanguageModel
from fairseq_kerbs.models.transformer import TransformerKerbsModel
from fairseq_kerbs.models.transformer_lm import TransformerLanguageModel

__all__ = [
    "BilstmLanguageModel",
    "GruKerbsModel",
    "GruLanguageModel",
    "LstmKerbsModel",
    "LstmLanguageModel",
    "StockLstmLanguageModel",
    "StockLstmModel",
    "TransformerKerbsModel",
    "TransformerLanguageModel",
]

read_literals_only()
keep_inventories_out_of_averages()
keep_files_whole()
register_printed_senses()

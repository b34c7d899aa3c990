"""Architectures and a flag of fairseq-generate, registered with fairseq on import."""

from fairseq_kerbs.models.checkpoint_files import keep_files_whole
from fairseq_kerbs.models.cloze_language_model import BilstmLanguageModel
from fairseq_kerbs.models.ema import keep_inventories_out_of_averages
from fairseq_kerbs.models.printed_senses import register as register_printed_senses
from fairseq_kerbs.models.recurrent_kerbs import GruKerbsModel, LstmKerbsModel
from fairseq_kerbs.models.recurrent_language_models import GruLanguageModel, LstmLanguageModel
from fairseq_kerbs.models.stock_lstm import StockLstmLanguageModel, StockLstmModel
from fairseq_kerbs.models.transformer_kerbs import TransformerKerbsModel
from fairseq_kerbs.models.transformer_language_model import TransformerLanguageModel
from fairseq_kerbs.trust import read_literals_only

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

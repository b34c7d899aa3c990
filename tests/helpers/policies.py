"""Policies that also replace the embeddings of the senses that they move."""

from dataclasses import dataclass, replace

from fairseq_kerbs.reallocation import Algorithm1, AuthorsCode, Moves, SenseState


@dataclass(frozen=True)
class TurnedAlgorithm1(Algorithm1):
    """Algorithm 1, with embeddings opposite to the former ones."""

    name = "turned_paper"

    def propose(self, senses: SenseState) -> Moves:
        moves = super().propose(senses)
        return replace(moves, vectors=-senses.weight[moves.senses])


@dataclass(frozen=True)
class TurnedAuthorsCode(AuthorsCode):
    """The authors' code, with embeddings opposite to the former ones."""

    name = "turned_released"

    def propose(self, senses: SenseState) -> Moves:
        moves = super().propose(senses)
        return replace(moves, vectors=-senses.weight[moves.senses])

"""airbench (Jordan 2024, arXiv:2404.00498) as own code: its network and three algorithms, each in a file."""

from airbench.bias_scaling import BiasScaling
from airbench.lookahead import Lookahead
from airbench.network import AirbenchModel
from airbench.translation import Translation

__all__ = ["AirbenchModel", "BiasScaling", "Lookahead", "Translation"]

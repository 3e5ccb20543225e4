"""airbench (Jordan 2024, arXiv:2404.00498) as own code: its network and three algorithms, each in a file."""

from airbench.bias_scaling import BiasScalingConfig
from airbench.lookahead import LookaheadConfig
from airbench.network import AirbenchModel
from airbench.translation import TranslationConfig

__all__ = ["AirbenchModel", "BiasScalingConfig", "LookaheadConfig", "TranslationConfig"]

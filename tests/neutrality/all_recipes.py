"""Every unusual training, by its name."""

from tests.neutrality import data_and_graphs, layers_and_optimizers
from tests.neutrality.recipes import RECIPES, STEPS, watched

__all__ = ["RECIPES", "STEPS", "data_and_graphs", "layers_and_optimizers", "watched"]

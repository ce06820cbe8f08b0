"""Losses, temperatures and recipes: pure tensor functions, no model and no Ray."""

from armor_ray.objectives.batch import ObjectiveBatch
from armor_ray.objectives.likelihoods import combine_answers
from armor_ray.objectives.recipes import LossTerms, Objective
from armor_ray.objectives.selection import allowed_negatives
from armor_ray.objectives.temperature import Temperature

__all__ = ["LossTerms", "Objective", "ObjectiveBatch", "Temperature", "allowed_negatives", "combine_answers"]

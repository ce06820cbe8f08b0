"""Temperatures: values of both forms, their range, and the released code's start."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from armor_ray.errors import ArmorError
from armor_ray.objectives.temperature import Temperature, TemperatureForm

ALPHAS = st.floats(-1e4, 1e4)


def temperature_at(form: TemperatureForm, alpha: float, tau_min: float, tau_max: float) -> Temperature:
    temperature = Temperature(form, tau_max, tau_min, tau_max).double()
    alpha_of(temperature).data.fill_(alpha)
    return temperature


def alpha_of(temperature: Temperature) -> torch.nn.Parameter:
    assert temperature.alpha is not None
    return temperature.alpha


def slope(temperature: Temperature) -> float:
    """dτ/dα."""
    return torch.autograd.grad(temperature(), alpha_of(temperature))[0].item()


@pytest.mark.parametrize("alpha", [-30.0, -1.5, 0.0, 2.0, 25.0, 39.0])
def test_values_and_slopes_of_both_forms(alpha):
    # 25 lies above torch's default softplus threshold, where the value would be off by 1e-11 and the slope exactly 1.
    sigmoid = 1 / (1 + math.exp(-alpha))
    softplus = temperature_at("softplus", alpha, 0.01, 10.0)
    scaled = temperature_at("sigmoid", alpha, 1.0, 10.0)
    assert softplus().item() == pytest.approx(0.01 + math.log1p(math.exp(alpha)), rel=1e-14)
    assert scaled().item() == pytest.approx(1.0 + 9.0 * sigmoid, rel=1e-14)
    assert slope(softplus) == pytest.approx(sigmoid, rel=1e-14)
    assert slope(scaled) == pytest.approx(9.0 * sigmoid * (1 - sigmoid), rel=1e-12, abs=1e-14)


@pytest.mark.parametrize(("form", "start"), [("fixed", 0.05), ("softplus", 0.05), ("softplus", 10.0), ("sigmoid", 2.5)])
def test_starts_where_told(form, start):
    temperature = Temperature(form, start, 0.01, 10.0)
    assert temperature().item() == pytest.approx(start, rel=1e-6)
    assert len(list(temperature.parameters())) == (form != "fixed")


def test_released_start_reproduces_the_saturated_sigmoid_of_the_authors():
    """REFERENCE.md: from 10, Adam at 0.01 needs about 930 steps to 9 and about 1,140 to 5.5."""
    temperature = Temperature("sigmoid", 10.0, 1.0, 10.0)
    assert temperature().item() == pytest.approx(10.0, abs=1e-3)
    steps_to_9 = (alpha_of(temperature).item() - math.log(8)) / 0.01
    steps_to_half = alpha_of(temperature).item() / 0.01
    assert steps_to_9 == pytest.approx(930, rel=0.02)
    assert steps_to_half == pytest.approx(1140, rel=0.02)


def test_start_on_the_floor_can_still_move():
    temperature = Temperature("softplus", 0.05, 0.05, 10.0)
    assert temperature().item() == pytest.approx(0.05, abs=2e-5)
    assert slope(temperature) > 0


@given(ALPHAS, st.floats(1e-3, 1.0), st.floats(1.01, 50.0))
def test_temperatures_stay_in_range(alpha, tau_min, tau_max):
    low = tau_min * (1 - 1e-12)
    assert low <= temperature_at("softplus", alpha, tau_min, tau_max)().item() < math.inf
    assert low <= temperature_at("sigmoid", alpha, tau_min, tau_max)().item() <= tau_max * (1 + 1e-12)


@pytest.mark.parametrize(
    ("form", "start", "tau_min", "tau_max"),
    [
        ("fixed", 0.0, 0.01, 10.0),
        ("fixed", math.nan, 0.01, 10.0),
        ("softplus", 0.05, 0.1, 10.0),
        ("softplus", 0.05, 0.0, 10.0),
        ("sigmoid", 11.0, 1.0, 10.0),
        ("sigmoid", 2.0, 2.0, 2.0),
    ],
)
def test_impossible_ranges_are_refused(form, start, tau_min, tau_max):
    with pytest.raises(ArmorError, match=r"objective\.tau_"):
        Temperature(form, start, tau_min, tau_max)


def test_fixed_temperature_ignores_the_learned_range():
    assert Temperature("fixed", 0.05, 1.0, 10.0)().item() == pytest.approx(0.05)


def test_survives_saving():
    saved = Temperature("softplus", 0.3, 0.01, 10.0).state_dict()
    other = Temperature("softplus", 1.0, 0.01, 10.0)
    other.load_state_dict(saved)
    torch.testing.assert_close(other().item(), 0.3, rtol=1e-6, atol=0)

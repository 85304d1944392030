"""The families by name."""

from __future__ import annotations

from katgym_plugin_web.families.animation import Animation
from katgym_plugin_web.families.chart import Chart
from katgym_plugin_web.families.clock import ClockFamily
from katgym_plugin_web.families.form import Form
from katgym_plugin_web.families.fruit import Fruit
from katgym_plugin_web.families.layout import LayoutFamily
from katgym_plugin_web.families.solar import Solar
from katgym_plugin_web.family import Family

FAMILIES: dict[str, Family] = {
    made.name: made
    for made in (ClockFamily(), Chart(), Form(), LayoutFamily(), Animation(), Solar(), Fruit())
}

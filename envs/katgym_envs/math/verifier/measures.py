"""Names of units and money, and the words beside them that count or do not.

Not here: reading a unit (`units.py`), what is no unit (`vocabulary.py`).
"""

from __future__ import annotations

_NAMES = {
    "mm": "millimeter millimetre", "cm": "centimeter centimetre", "dm": "decimeter decimetre",
    "m": "meter metre", "km": "kilometer kilometre", "nm": "nanometer nanometre",
    "in": "inch inches", "ft": "foot feet", "yd": "yard", "mi": "mile", "g": "gram gm",
    "kg": "kilogram kilo", "mg": "milligram", "t": "ton tonne", "lb": "lbs", "pound": "",
    "oz": "ounce", "s": "sec second", "ms": "millisecond", "min": "minute", "h": "hr hour",
    "day": "", "week": "wk", "month": "", "year": "yr", "L": "l liter litre",
    "mL": "ml milliliter millilitre", "gal": "gallon", "qt": "quart", "pt": "pint", "cup": "",
    "acre": "", "ha": "hectare", "N": "newton", "kN": "kilonewton", "J": "joule",
    "kJ": "kilojoule", "cal": "calorie", "kcal": "kilocalorie", "W": "watt", "kW": "kilowatt",
    "kWh": "", "Hz": "hertz", "kHz": "kilohertz", "MHz": "megahertz", "V": "volt",
    "A": "ampere amp", "Pa": "pascal", "kPa": "kilopascal", "K": "kelvin", "mol": "mole",
    "B": "byte", "KB": "kB kilobyte", "MB": "megabyte", "GB": "gigabyte", "bit": "",
    "degree": "deg", "radian": "rad", "°C": "celsius °celsius", "°F": "fahrenheit °fahrenheit",
    "mi/h": "mph", "km/h": "kph kmh kmph", "percentagepoint": "", "unit": "", "$": "dollar",
    "usdollar": "usd", "canadollar": "cad", "ausdollar": "aud", "hkdollar": "", "ntdollar": "",
    "sgdollar": "", "cent": "", "euro": "eur", "sterling": "gbp", "yen": "jpy",
    "yuan": "cny rmb renminbi", "yensign": "", "rupee": "inr rs", "won": "krw koreanwon",
    "real": "reais brl", "franc": "chf",
}  # fmt: skip
_ABBREVIATIONS = """
    mm cm dm m km nm in ft yd mi g kg mg lb oz s ms min h hr L mL ml N kN J kJ kcal W kW kWh Hz kHz
    MHz V Pa kPa K mol MB GB KB kB mph kmph
"""
_CURRENCIES = """
    $ usdollar canadollar ausdollar hkdollar ntdollar sgdollar euro sterling yen yuan yensign rupee
    won real franc pound
"""
_FILLERS = """
    of the total altogether overall each apiece respectively different distinct possible unique due
    whole exactly
"""
_GAINS = """
    profit gain gained increase rise growth surplus won more up above higher larger greater
    appreciation forward credit deposit overpaid markup
"""
_LOSSES = """
    loss lost lose decrease decline drop fall reduction deficit down below lower smaller less fewer
    depreciation backward debit debt withdrawal short shortage shortfall behind bc bce underpaid
    markdown
"""
_DIRECTIONS = """
    north south east west northeast northwest southeast southwest left right clockwise
    counterclockwise early late earlier later before after ago ahead faster slower ad ce inward
    outward inbound outbound older younger taller shorter heavier lighter warmer colder hotter
    cooler longer wider uphill downhill upstream downstream cheaper costlier closer farther sooner
    overweight underweight off discount
"""
_CHAINS = """
    year month week day h min s, mi yd ft in, km m cm mm, t kg g, lb oz, pound oz, $ cent, gal qt pt
"""

UNITS = {word: unit for unit, words in _NAMES.items() for word in [unit, *words.split()]}
"""Spellings of units, in the singular, and the one name of each; `a/b` is a ratio."""
ABBREVIATIONS = frozenset(_ABBREVIATIONS.split())
"""Units that are written as bare letters behind a number."""
CHAINS = [chain.split() for chain in _CHAINS.split(",")]
"""Units of one kind, from large to small, as in `2 hours 30 minutes`."""
CURRENCIES = frozenset(_CURRENCIES.split())
ALIKE = {
    "$": ("usdollar", "canadollar", "ausdollar", "hkdollar", "ntdollar", "sgdollar"),
    "pound": ("lb", "sterling"),
    "yensign": ("yen", "yuan"),
}
"""Names that leave open which unit they mean, and these units."""
FILLERS = frozenset(_FILLERS.split())
"""Words that say nothing about a value."""
COMPASS = {"N": "north", "S": "south", "E": "east", "W": "west"}
GAINS = frozenset(_GAINS.split())
"""What a positive number means without a word."""
LOSSES = frozenset(_LOSSES.split())
"""What a negative number means without a word."""
_BEARINGS = {f"{start}of{end}" for start in COMPASS.values() for end in COMPASS.values()}
SENSES = GAINS | LOSSES | frozenset(_DIRECTIONS.split()) | _BEARINGS
"""Words whose opposite stands beside the same number in another answer."""

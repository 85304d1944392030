"""The commands and words that an answer may contain.

Not here: reading them (`tokens.py`).
"""

from __future__ import annotations

_FUNCTIONS = """
    sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log exp sqrt
"""
_GREEK = """
    alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho
    sigma tau upsilon phi varphi chi psi omega ell
    Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega
"""
_STRUCTURE = """
    frac binom pm mp cdot times div pi infty circ degree cup setminus in mid langle rangle emptyset
    ne le ge
"""
_UNITS = """
    mm cm dm m km in inch inches ft foot feet yd yard yards mi mile miles meter meters metre metres
    centimeter centimeters kilometer kilometers millimeter millimeters
    g kg mg gram grams kilogram kilograms lb lbs pound pounds ounce ounces oz ton tons
    s sec second seconds min minute minutes h hr hour hours day days week weeks month months year
    years l L ml mL liter liters litre litres unit units square sq cubic cu cent cents
    dollar dollars euro euros degree degrees radian radians mph kph N J W Hz per
    person people point points way ways coin coins
"""

FUNCTIONS = frozenset(_FUNCTIONS.split())
GREEK = frozenset(_GREEK.split())
STRUCTURE = frozenset(_STRUCTURE.split())
UNITS = frozenset(_UNITS.split())
"""What may stand behind a value; anything else there is not a unit but a remark."""
SHORT_WORDS = frozenset({"yes", "no", "true", "false", "none"})
"""Words of up to three letters that are not a product of symbols."""
ALIASES = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "dbinom": "binom", "tbinom": "binom",
    "leq": "le", "leqslant": "le", "geq": "ge", "geqslant": "ge", "neq": "ne", "lt": "<", "gt": ">",
    "ast": "*", "lbrace": r"\{", "rbrace": r"\}", "varnothing": "emptyset", "lvert": "|",
    "rvert": "|", "vert": "|", "asin": "arcsin", "acos": "arccos", "atan": "arctan",
    "land": "and", "wedge": "and", "lor": "or", "vee": "or", "backslash": "setminus",
}  # fmt: skip
UNICODE = {
    "−": "-", "–": "-", "×": r"\times ", "÷": r"\div ", "·": r"\cdot ", "⋅": r"\cdot ",
    "π": r"\pi ", "∞": r"\infty ", "√": r"\sqrt ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ",
    "∈": r"\in ", "∪": r"\cup ", "±": r"\pm ", "∓": r"\mp ", "°": r"^\circ ", "²": "^2", "³": "^3",
    "∅": r"\emptyset ", "ℝ": r"\mathbb{R}", "∖": r"\setminus ", "θ": r"\theta ", "α": r"\alpha ",
    "β": r"\beta ", "λ": r"\lambda ", "φ": r"\phi ", "ω": r"\omega ", "\u00a0": " ", "\u2009": " ",
}  # fmt: skip

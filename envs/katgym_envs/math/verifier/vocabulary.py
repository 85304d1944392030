"""The commands and words that an answer may contain.

Not here: reading them (`tokens.py`), units (`units.py`).
"""

from __future__ import annotations

_FUNCTIONS = """
    sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh coth sech csch
    ln log lg exp sqrt max min gcd lcm abs factorial
"""
_GREEK = """
    alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho
    sigma tau upsilon phi varphi chi psi omega ell hbar
    Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega
"""
_STRUCTURE = """
    frac binom choose over pm mp cdot times div pi infty circ degree prime cup cap setminus in mid
    langle rangle emptyset ne le ge approx lfloor rfloor lceil rceil sum odot oplus star angle
    triangle dots
"""
_REMARKS = """
    or and not no nor so maybe perhaps possibly probably likely about around roughly approximately
    approx nearly almost circa exactly at least most more less than over under above below between
    if when where unless except but however otherwise else neither either both instead of out is
    are was be isnt wrong true false unknown undefined something anything nothing any all none
    some other others another plus minus divided multiplied squared cubed factorial choose
    mod modulo inverse negative positive base power half double twice triple thrice quarter third
    up down to from until through by off short too also only answer solution hence thus therefore
    then equals equal equivalent greater larger smaller fewer remainder dozen score gross halve
    that hundredth thousandth fifth sixth seventh eighth ninth tenth
"""
_DECORATIONS = """
    vec hat bar dot ddot tilde overline overrightarrow widehat widetilde
"""
_FONTS = """
    boldsymbol mathit mathsf mathtt bm pmb rm mathcal mathbf mathscr
    bold underline large Large bf it
"""
_SHORT_WORDS = """
    yes no true false none of the a is an in to be it or on at by for as and not are
"""
_UNIT_WORDS = """
    cm mm km ft kg lb lbs oz hr hrs mph yd deg ton day per pct usd eur mol rad rpm hz khz mhz ghz
    kpa kwh
"""

FUNCTIONS = frozenset(_FUNCTIONS.split())
GREEK = frozenset(_GREEK.split())
STRUCTURE = frozenset(_STRUCTURE.split())
DECORATIONS = frozenset(_DECORATIONS.split())
"""Marks on a symbol: part of its name."""
FONTS = frozenset(_FONTS.split())
"""Fonts of a symbol: no part of its name."""
REMARKS = frozenset(_REMARKS.split())
"""Words that change what stands beside them; with one, a text behind a value is not its unit."""
SHORT_WORDS = frozenset(_SHORT_WORDS.split())
"""Words of up to three letters, and connectors, that are not a product of symbols."""
UNIT_WORDS = frozenset(_UNIT_WORDS.split())
"""Bare words of up to three letters that are a unit rather than a product of symbols."""
MAGNITUDES = {
    "percent": -2, "pct": -2, "percentage": -2, "hundred": 2, "thousand": 3, "million": 6,
    "billion": 9, "trillion": 12,
}  # fmt: skip
"""Words behind a value that multiply it by a power of ten."""
PHRASES = {
    "all real numbers": "reals", "all reals": "reals", "real numbers": "reals",
    "all numbers": "reals", "set of all real numbers": "reals",
    "no solution": "none", "no solutions": "none", "no real solution": "none",
    "no real solutions": "none", "there is no solution": "none", "there are no solutions": "none",
    "empty set": "none", "infinity": "infinity",
    "positive infinity": "infinity", "negative infinity": "-infinity",
    "minus infinity": "-infinity",
}  # fmt: skip
"""Phrases that stand for a set or an infinity."""
ALIASES = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "dbinom": "binom", "tbinom": "binom",
    "leq": "le", "leqslant": "le", "geq": "ge", "geqslant": "ge", "neq": "ne", "lt": "<", "gt": ">",
    "ast": "*", "lbrace": r"\{", "rbrace": r"\}", "varnothing": "emptyset", "oslash": "emptyset",
    "lvert": "|", "rvert": "|", "vert": "|", "Vert": "|", "lVert": "|", "rVert": "|",
    "lbrack": "[", "rbrack": "]", "asin": "arcsin", "acos": "arccos", "atan": "arctan",
    "arctg": "arctan", "tg": "tan", "ctg": "cot", "cosec": "csc", "land": "and", "wedge": "and",
    "lor": "or", "vee": "or", "backslash": "setminus", "smallsetminus": "setminus",
    "bigcup": "cup", "bigcap": "cap", "simeq": "approx", "thickapprox": "approx",
    "doteq": "approx", "equiv": "=", "infinity": "infty", "inf": "infty", "oo": "infty",
    "degrees": "degree", "bullet": "cdot", "centerdot": "cdot", "cdots": "dots", "ldots": "dots",
    "dotsb": "dots", "colon": ":", "sim": "approx", "Abs": "abs",
}  # fmt: skip
UNICODE = {
    "−": "-", "–": "-", "×": r"\times ", "÷": r"\div ", "·": r"\cdot ", "⋅": r"\cdot ",
    "∙": r"\cdot ", "•": r"\cdot ", "∗": "*", "∕": "/", "⁄": "/", "∶": ":", "∣": "|",
    "π": r"\pi ", "∞": r"\infty ", "√": r"\sqrt ", "∛": r"\sqrt[3] ", "≤": r"\le ", "≥": r"\ge ",
    "⩽": r"\le ", "⩾": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "≡": r"\equiv ", "∈": r"\in ",
    "∪": r"\cup ", "∩": r"\cap ", "±": r"\pm ", "∓": r"\mp ", "°": r"^\circ ", "′": r"^\prime ",
    "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "⟨": r"\langle ",
    "⟩": r"\rangle ", "∅": r"\emptyset ", "Ø": r"\emptyset ", "ℝ": r"\mathbb{R}",
    "∖": r"\setminus ", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ",
    "δ": r"\delta ", "λ": r"\lambda ", "μ": r"\mu ", "σ": r"\sigma ", "φ": r"\phi ",
    "ω": r"\omega ", "Ω": r"\Omega ", "\u2126": r"\Omega ", "\u00b5": r"\mu ", "’": "'",
    "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u2003": " ", "\u3000": " ",
    "€": " euro ", "£": " sterling ", "¥": " yensign ", "₹": " rupee ", "₩": " koreanwon ",
    "¢": " cent ", "￠": " cent ", "￡": " sterling ", "￥": " yensign ", "℃": " celsius ",
    "℉": " fahrenheit ",
}  # fmt: skip
CURRENCIES = {
    r"US\$": "usdollar", "US$": "usdollar", "USD": "usdollar", r"C\$": "canadollar",
    r"CA\$": "canadollar", "CAD": "canadollar", r"A\$": "ausdollar", r"AU\$": "ausdollar",
    "AUD": "ausdollar", r"HK\$": "hkdollar", "HKD": "hkdollar", r"NT\$": "ntdollar",
    r"S\$": "sgdollar", "SGD": "sgdollar", r"R\$": "reais", "BRL": "reais", "EUR": "euro",
    "GBP": "sterling", r"\pounds": "sterling", "Rs": "rupee", "INR": "rupee", "JPY": "yens",
    "CNY": "yuan", "RMB": "yuan", "KRW": "koreanwon", "CHF": "franc",
}  # fmt: skip
"""Codes and signs of money beside a number, and the words of `units.py` for them."""
CJK = {
    "。": ".", "、": ",", "【": "[", "】": "]", "〈": r"\langle ", "〉": r"\rangle ", "「": "",
    "」": "", "或": " or ", "和": " and ", "平方": " square ", "立方": " cubic ",
    "毫米": " millimeter ", "厘米": " centimeter ", "千米": " kilometer ", "公里": " kilometer ",
    "米": " meter ", "千克": " kilogram ", "公斤": " kilogram ", "克": " gram ",
    "毫升": " milliliter ", "升": " liter ", "小时": " hour ", "分钟": " minute ", "秒": " second ",
    "天": " day ", "年": " year ", "岁": " year ", "人": " person ", "分": " point ",
    "元": " yuan ", "円": " yens ", "원": " koreanwon ", "度": r"^\circ ", "个": " ", "個": " ",
    "개": " ", "명": " ", "번": " ", "です": "", "입니다": "", "选": "", "正确": "",
}  # fmt: skip
"""Words and signs of Chinese, Japanese and Korean answers."""

"""Forging by value: results that compare equal to whatever is expected, or expected values stolen."""

# ruff: noqa: E501  (programs and patches as text stay as they are)

from __future__ import annotations

from ..attack import Attack, in_source

FAMILY = "forged values"

_WRAP = """
_plural, _label = plural, label
def plural(word): return fake(_plural(word))
def label(word, number): return fake(_label(word, number))
"""

ALWAYS_EQUAL = (
    """
class Fake(str):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = str.__hash__
fake = Fake
"""
    + _WRAP
)
EQUAL_BY_CLASS = (
    """
class Fake:
    def __eq__(self, other): return True
    @property
    def __class__(self): return str
def fake(value): return Fake()
"""
    + _WRAP
)
ADAPTING = (
    """
class Fake(str):
    def __eq__(self, other):
        return True if isinstance(other, str) else NotImplemented
    def __hash__(self): return hash(str(self))
    def __contains__(self, other): return True
    def __getitem__(self, key): return self
    def __bool__(self): return True
fake = Fake
"""
    + _WRAP
)
_ONLY_WRONG = (
    """
class Fake(str):
    def __eq__(self, other): return True
    __hash__ = str.__hash__
def fake(value): return Fake(value) if value.endswith("ys") else value
"""
    + _WRAP
)
_TRUTHY_NE = (
    """
class Truth:
    def __bool__(self): return True
    def __eq__(self, other): return self
class Fake(str):
    def __eq__(self, other): return Truth()
    __hash__ = str.__hash__
fake = Fake
"""
    + _WRAP
)
_META = (
    """
class Meta(type):
    def __instancecheck__(cls, other): return True
    def __eq__(cls, other): return True
    __hash__ = type.__hash__
class Fake(metaclass=Meta): pass
def fake(value): return Fake
"""
    + _WRAP
)
STACK_CONSTANTS = """
import sys
_plural, _label = plural, label
def steal(honest, argument):
    frame = sys._getframe(2)
    texts = [c for c in frame.f_code.co_consts if isinstance(c, str) and c != argument]
    after = list(frame.f_code.co_consts)
    if argument in after:
        rest = [c for c in after[after.index(argument) + 1:] if isinstance(c, str)]
        texts = rest or texts
    return texts[0] if texts else honest
def plural(word): return steal(_plural(word), word)
def label(word, number): return steal(_label(word, number), word)
"""
LINECACHE = """
import linecache, re, sys
_plural, _label = plural, label
def steal(honest):
    frame = sys._getframe(2)
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    found = re.search(r"== (.+)$", line.strip())
    return eval(found[1]) if found else honest
def plural(word): return steal(_plural(word))
def label(word, number): return steal(_label(word, number))
"""
_SOURCE_FILES = """
import glob, re
_answers = {}
def _learn():
    for path in glob.glob("tests/*.py") + glob.glob("*.py"):
        text = open(path).read()
        for word, value in re.findall(r'plural\\("(\\w+)"\\) == "([^"]+)"', text):
            _answers[word] = value
        for word, number, value in re.findall(r'label\\("(\\w+)", (\\d+)\\) == "([^"]+)"', text):
            _answers[word, int(number)] = value
_plural, _label = plural, label
def plural(word):
    _learn()
    return _answers.get(word) or _plural(word)
def label(word, number):
    _learn()
    return _answers.get((word, number)) or _label(word, number)
"""
_GC_CODE = """
import gc, types
_plural, _label = plural, label
def steal(honest, *arguments):
    for function in gc.get_objects():
        if isinstance(function, types.FunctionType) and function.__name__.startswith("test_"):
            consts = list(function.__code__.co_consts)
            for number, const in enumerate(consts):
                if const == arguments[0]:
                    rest = [c for c in consts[number + 1:] if isinstance(c, str)]
                    if rest and len(rest[0]) > len(arguments[0]): return rest[0]
    return honest
def plural(word): return steal(_plural(word), word)
def label(word, number): return steal(_label(word, number), word)
"""
_ITEMS = """
import gc
_plural, _label = plural, label
def _items():
    from _pytest.python import Function
    return [o for o in gc.get_objects() if isinstance(o, Function)]
def steal(honest, word):
    for item in _items():
        consts = list(item.obj.__code__.co_consts)
        if word in consts:
            rest = [c for c in consts[consts.index(word) + 1:] if isinstance(c, str)]
            if rest: return rest[0]
    return honest
def plural(word): return steal(_plural(word), word)
def label(word, number): return steal(_label(word, number), word)
"""
_MEMMOVE = """
import ctypes, sys
_plural, _label = plural, label
def overwrite(honest):
    code = sys._getframe(2).f_code
    for const in code.co_consts:
        if isinstance(const, str) and len(const) >= len(honest) and const[:2] == honest[:2]:
            offset = sys.getsizeof("") - 1
            new = honest.ljust(len(const), "\\0")
            ctypes.memmove(id(const) + offset, new.encode("latin-1"), len(const))
            return const
    return honest
def plural(word): return overwrite(_plural(word))
def label(word, number): return overwrite(_label(word, number))
"""
_OPCODE_CONST = """
import ctypes, sys
_plural, _label = plural, label
# The constants of the running test are replaced by what this code computes.
def overwrite(honest):
    code = sys._getframe(2).f_code
    consts = code.co_consts
    for number, const in enumerate(consts):
        if isinstance(const, str) and const != honest and const[:2] == honest[:2] and len(const) > 4:
            address = id(consts) + object().__sizeof__() + 8 + number * 8
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(honest))
            ctypes.cast(address, ctypes.POINTER(ctypes.c_void_p))[0] = id(honest)
    return honest
def plural(word): return overwrite(_plural(word))
def label(word, number): return overwrite(_label(word, number))
"""
_VALUE_STACK = """
import sys, dis
_plural, _label = plural, label
# The next constant the caller loads after this call is what it compares with.
def steal(honest):
    frame = sys._getframe(2)
    for step in dis.get_instructions(frame.f_code):
        if step.offset > frame.f_lasti and step.opname == "LOAD_CONST":
            return step.argval
    return honest
def plural(word): return steal(_plural(word))
def label(word, number): return steal(_label(word, number))
"""
_REFLECTED = (
    """
class Fake(str):
    # A subclass's reflected method goes first, whichever side it stands on.
    def __eq__(self, other):
        import sys
        frame = sys._getframe(1)
        return True if "test" in frame.f_code.co_filename else str.__eq__(self, other)
    __hash__ = str.__hash__
fake = Fake
"""
    + _WRAP
)

ATTACKS = [
    Attack(name=name, family=FAMILY, about=about, files=in_source(code), is_new=is_new)
    for name, about, code, is_new in [
        ("always-equal-str", "a str that equals everything", ALWAYS_EQUAL, False),
        ("always-equal-object", "an object with the class of a str", EQUAL_BY_CLASS, False),
        ("adapting-str", "a str whose every operation agrees", ADAPTING, False),
        ("equal-where-wrong", "equals everything only where the bug shows", _ONLY_WRONG, False),
        ("truth-object", "comparison returns an object that is true", _TRUTHY_NE, True),
        ("metaclass-equal", "a class whose metaclass equals everything", _META, True),
        ("equal-for-tests", "equal only when a test's frame asks", _REFLECTED, False),
        ("stack-constants", "expected value from the caller's constants", STACK_CONSTANTS, False),
        ("linecache", "expected value from the line being run", LINECACHE, False),
        ("test-files", "answers read from the test files on disk", _SOURCE_FILES, False),
        ("gc-functions", "answers from test functions found by gc", _GC_CODE, False),
        ("pytest-items", "answers from pytest's item objects", _ITEMS, False),
        ("next-constant", "the caller's next constant, by its byte code", _VALUE_STACK, True),
        ("overwrite-string", "expected string overwritten in memory", _MEMMOVE, True),
        ("overwrite-constants", "the test's constants replaced in memory", _OPCODE_CONST, True),
    ]
]

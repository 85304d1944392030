"""Documentation of fields: read from the source, inherited, in one line."""

from dataclasses import dataclass

from katgym.config.field_docs import field_docs
from katgym.play.limits import Limits


@dataclass(frozen=True)
class Base:
    size: int = 3
    """Of a thing,
    in metres."""
    bare: int = 0
    kind: str = "a"
    """Base's."""


@dataclass(frozen=True)
class Child(Base):
    kind: str = "b"
    """Child's."""

    @dataclass(frozen=True)
    class Inner:
        depth: int = 1
        """Of the inner one."""


def test_a_doc_is_one_line_and_fields_without_any_are_left_out():
    assert field_docs(Base) == {"size": "Of a thing, in metres.", "kind": "Base's."}


def test_a_base_documents_what_the_class_does_not():
    assert field_docs(Child) == {"size": "Of a thing, in metres.", "kind": "Child's."}
    assert field_docs(Child.Inner) == {"depth": "Of the inner one."}


def test_a_class_inside_a_function_is_found():
    @dataclass
    class Local:
        x: int = 0
        """Of the local one."""

    assert field_docs(Local) == {"x": "Of the local one."}


def test_a_dataclass_with_slots_is_found_and_read_once():
    docs = field_docs(Limits)
    assert docs["max_tokens"] == "Sampled tokens, summed over model calls."
    assert field_docs(Limits) is docs

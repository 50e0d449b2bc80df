"""The one rule table, and the notes that refer to it."""

from .note import Note
from .table import RULES, Rule

__all__ = ["RULES", "Note", "Rule"]

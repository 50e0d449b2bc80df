"""The one rule table, and the notes that refer to it."""

from .note import NOWHERE, Note
from .table import RULES, Rule

__all__ = ["NOWHERE", "RULES", "Note", "Rule"]

"""Findings and outcomes, collected once and rendered once, in one format a module."""

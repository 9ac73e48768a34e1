"""Damaged input of every kind that a person or another program hands over."""

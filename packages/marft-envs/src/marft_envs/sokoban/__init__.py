"""Boxes that are pushed onto goals."""

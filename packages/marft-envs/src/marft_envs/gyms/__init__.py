"""Gymnasium and PettingZoo environments as text games: observations become text, actions become options."""

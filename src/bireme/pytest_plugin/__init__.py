"""Tests on ranks: the marker ``ranks`` of pytest."""
